"""Descriptors of the API, compiled once: methods, JSON encoding and decoding, and validation."""
