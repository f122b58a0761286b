"""One message, or many together, through one checker."""
