"""The tables of keys, as migrations of Django."""
