"""Schema of the API, compiled once from protobuf descriptors: methods, JSON conversion, validation."""
