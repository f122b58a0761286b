"""`idempotent keys`: look at stored keys, and decide about those that wait for a person."""
