"""HTTP in: middleware for ASGI and WSGI applications."""
