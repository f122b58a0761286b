"""The demo's flights over a real broker: two consuming processes that are killed, a broker that is restarted."""
