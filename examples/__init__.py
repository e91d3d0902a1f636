"""Small real games on the hosting service."""
