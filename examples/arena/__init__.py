"""Arena: a small authoritative WebSocket game that runs as a lobby of the hosting service."""
