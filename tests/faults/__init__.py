"""Faults: what would break a promise, and the test that notices."""
