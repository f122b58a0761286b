"""Consumers that are paused, and the workers that serve them."""
