"""The demo over a real broker: two consuming processes that are killed, and a broker that is restarted."""
