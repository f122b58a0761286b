"""Actors of dramatiq that are protected, in real workers."""
