"""Connections to the servers of stores. Independent of claims."""
