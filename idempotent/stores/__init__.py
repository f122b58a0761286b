"""How we speak to a store's server. Knows nothing of claims."""
