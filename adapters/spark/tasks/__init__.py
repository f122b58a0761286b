"""What runs inside a Spark task, on an executor."""
