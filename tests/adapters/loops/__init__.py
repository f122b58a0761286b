"""Loops over the clients of brokers that their users wrote."""
