"""What the ledger, the incidents and the journals say about the promise."""
