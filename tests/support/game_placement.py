"""A service with game servers in one of its placements, as the stories about both need it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

from pyservice.settings.sections import RateLimits
from tests.support.full_service import UNLIMITED

TIER: Final = "small"
HUGE_TIER: Final = "huge"
"""Tier that no machine has room for."""
START_LIMIT_S: Final = 30


def _tier(name: str, memory_mb: int, cores: tuple[int, int]) -> dict[str, Any]:
    return {
        "tier_name_id": name,
        "bandwidth": 1_000,
        "cpu": 100,
        "disk": 16,
        "memory": memory_mb,
        "service_cores_numerator": cores[0],
        "service_cores_denominator": cores[1],
    }


SETTINGS: Final[dict[str, Any]] = {
    "rate_limits": dict.fromkeys(RateLimits.model_fields, UNLIMITED),
    "tiers": [_tier(TIER, 64, (1, 20)), _tier(HUGE_TIER, 64, (60, 1))],
    "start_limit_ms": START_LIMIT_S * 1_000,
    # No story waits for the end of an empty lobby.
    "empty_lobby_grace_ms": 3_600_000,
}
"""Settings of the service in both placements."""


class GamePlacement(Protocol):
    @property
    def name(self) -> Literal["local", "kubernetes"]: ...

    @property
    def url(self) -> str:
        """URL of the API."""
        ...

    @property
    def owner_token(self) -> str: ...

    def network(self) -> AbstractContextManager[None]:
        """Moves this thread to a network from which it reaches the service and the game servers."""
        ...

    def pause(self) -> None:
        """Suspends the control plane and the data plane, until they are killed."""
        ...

    def kill(self) -> None:
        """Kills both planes, and waits until they have started again."""
        ...
