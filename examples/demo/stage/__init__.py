"""Brokers, databases and checkers that the demo and the torture set up on real servers, and tear down."""
