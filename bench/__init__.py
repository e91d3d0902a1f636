"""Measurements of the service, each with a baseline beside it (`make bench`)."""
