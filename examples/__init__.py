"""Example games for the hosting service."""
