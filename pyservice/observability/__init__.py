"""Metrics, logs, rays and health conditions for the operator."""
