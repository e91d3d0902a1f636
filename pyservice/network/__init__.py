"""Host names, IP addresses, reserved names and port ranges."""
