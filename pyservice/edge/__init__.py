"""The HTTP/JSON transport: routes and bodies from the protos, and the ASGI application."""
