"""What `idempotent doctor` says of databases, brokers and runs."""
