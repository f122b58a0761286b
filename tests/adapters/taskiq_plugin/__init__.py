"""Tasks of taskiq that are protected, in real workers."""
