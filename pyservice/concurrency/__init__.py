"""Cancellation, fair queueing and single-flight on the event loop."""
