"""Baselines: the least that a server of the same kind can do for the same request."""
