"""Start, signals, directory lock and ready report of a process."""
