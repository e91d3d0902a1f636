"""Generated: messages of hosting."""
