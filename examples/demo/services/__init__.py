"""Two services with an outbox between them: each flight is an order, and each order makes an invoice."""
