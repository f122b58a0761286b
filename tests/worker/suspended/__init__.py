"""Lives of single messages that keep no thread while they wait for a round."""
