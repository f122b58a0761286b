"""Idempotency-Key, over real web servers."""
