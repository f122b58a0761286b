"""The units of async handlers: the same transactions, in greenlets on the handler's event loop."""
