"""The HTTP/JSON door: routes and bodies derived from the protos, and the ASGI application."""
