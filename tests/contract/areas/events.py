"""Live events: who reads a channel, and how each refusal comes about."""

from __future__ import annotations

import httpx

from tests.contract.provocations import provokes
from tests.contract.scene import Scene, credential


@credential("channel")
def _(scene: Scene) -> str:
    """The secret of a channel that is the scene's alone."""
    return f"{scene.name}-{'c' * 24}"[:64]


@provokes("live_events", "TOKEN_INVALID")
def _(scene: Scene) -> httpx.Response:
    """Any text that may be a secret is the secret of some channel; this one is too short for one."""
    return scene.call("live_events", bearer="short")
