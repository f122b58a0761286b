"""The middleware for WSGI applications, over the table of the one for ASGI."""
