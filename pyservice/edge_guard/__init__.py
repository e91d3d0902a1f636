"""Edge-guard beside the service: its configuration, its process, and queries to it."""
