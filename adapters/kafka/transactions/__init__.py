"""Transactions of Kafka: what a worker sends together with its offsets, and a relay bucket by bucket."""
