"""Functions and requests: what protects a call, against the same without our part."""
