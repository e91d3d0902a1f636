"""The HTTP/JSON transport: servers, and the conversion between JSON and proto messages."""
