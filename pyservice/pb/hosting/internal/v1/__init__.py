"""Generated: messages of hosting.internal.v1."""
