"""Cancellation and fair queueing on the event loop."""
