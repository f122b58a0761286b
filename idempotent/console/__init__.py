"""The console, `idempotent web`: dead letters, keys and outboxes in a browser, and what a person decides about them."""
