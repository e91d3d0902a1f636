"""Descriptors of the contract, compiled once: methods, JSON in both directions, and validation."""
