"""What is done to consumers, connections, brokers and stores, when, and by what."""
