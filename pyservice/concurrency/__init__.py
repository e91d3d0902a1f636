"""Back-off, cancellation, fair queueing and single-flight on the event loop."""
