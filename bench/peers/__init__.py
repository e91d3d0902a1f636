"""Baselines: minimal servers with the same libraries for the same requests."""
