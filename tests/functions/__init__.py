"""`@idempotent` and `once`."""
