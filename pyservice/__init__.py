"""A self-hosted multiplayer hosting service: data plane, control plane and their command line."""
