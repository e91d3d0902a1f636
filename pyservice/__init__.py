"""A self-hosted multiplayer hosting service: data plane, control plane and the command line that runs them."""
