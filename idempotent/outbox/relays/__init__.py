"""The relay of an outbox: it publishes what committed transactions have left there."""
