"""Live events: who reads a channel, and how each refusal comes about."""

from __future__ import annotations

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import Scenario, credential


@credential("channel")
def _(scenario: Scenario) -> str:
    """The secret of a channel that is the scenario's alone."""
    return f"{scenario.name}-{'c' * 24}"[:64]


@error_case("live_events", "TOKEN_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    """Any text that may be a secret is the secret of some channel; this one is too short for one."""
    return scenario.call("live_events", bearer="short")
