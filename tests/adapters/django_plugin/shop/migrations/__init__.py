"""The table of effects."""
