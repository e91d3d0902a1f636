"""Arena: a small WebSocket game in which the server decides everything."""
