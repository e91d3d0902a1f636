"""Test support: services under test, clients, databases and waiting."""
