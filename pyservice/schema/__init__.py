"""What the descriptors of the contract say, compiled once: methods, JSON both ways, validation."""
