"""Generated: messages of hosting.v1."""
