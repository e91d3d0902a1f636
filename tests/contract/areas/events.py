"""Placeholders and error cases for live events."""

from __future__ import annotations

import httpx

from tests.contract.error_cases import error_case
from tests.contract.scenario import Scenario, credential


@credential("channel")
def _(scenario: Scenario) -> str:
    return f"{scenario.name}-{'c' * 24}"[:64]


@error_case("live_events", "TOKEN_INVALID")
def _(scenario: Scenario) -> httpx.Response:
    """This text is too short for a channel secret. Every longer text is the secret of some channel."""
    return scenario.call("live_events", bearer="short")
