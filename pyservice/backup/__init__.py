"""Backup of a running service, its check, and the restore into an empty data directory."""
