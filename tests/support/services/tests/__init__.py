"""Tests of the servers that the tests use."""
