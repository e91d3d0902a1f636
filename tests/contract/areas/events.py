"""Live events: who reads a channel, and how each refusal comes about."""

from __future__ import annotations

from tests.contract.scene import Scene, credential


@credential("channel")
def _(scene: Scene) -> str:
    """The secret of a channel that is the scene's alone."""
    return f"{scene.name}-{'c' * 24}"[:64]
