"""Runs game servers: unpacks builds, starts processes under keepers, finds them again after a restart."""
