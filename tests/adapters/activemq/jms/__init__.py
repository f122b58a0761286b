"""Messages of JMS clients."""
