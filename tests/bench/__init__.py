"""Benchmarks: ratios inside one run, on one machine. Nothing here is a test."""
