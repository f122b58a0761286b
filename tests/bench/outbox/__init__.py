"""The outbox: what it costs to send, and how fast a relay publishes."""
