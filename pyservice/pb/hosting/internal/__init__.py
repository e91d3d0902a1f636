"""Generated: messages of hosting.internal."""
