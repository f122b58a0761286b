"""An application of Django: a table of effects, and views that write into it."""
