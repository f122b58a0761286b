"""Transactions of Kafka: what a worker sends together with its offsets."""
