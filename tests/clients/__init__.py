"""Clients of other people: what a consumer here receives of them, and what they read of its dead letters."""
