"""Connections that the probe Pod tries, and what it reports about them.

The Pod has a `ConnectionTrial` as an argument of the command `pyservice.node.try_connections`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

MODULE: Final = "pyservice.node.try_connections"
TRIAL_TIMEOUT_S: Final = 30.0
"""Time in which a network plugin must have applied the policies to a new Pod."""


@dataclass(frozen=True, slots=True)
class ConnectionTrial:
    """Addresses as `host:port`."""

    allowed: str
    """The API of the service, which each game server must reach."""
    refused: tuple[str, ...]
    """Addresses that answer, and that no game server may reach."""
    timeout_s: float = TRIAL_TIMEOUT_S

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> ConnectionTrial:
        """Raises ValueError, TypeError, KeyError."""
        fields = json.loads(text)
        return cls(**{**fields, "refused": tuple(fields["refused"])})


@dataclass(frozen=True, slots=True)
class TrialReport:
    reaches_allowed: bool
    """Whether the Pod reached the API at last."""
    reached: tuple[str, ...] = ()
    """Addresses of `refused` that the Pod reached at last."""
    open_ms: int = 0
    """Time after its start in which the Pod reached one of them."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> TrialReport:
        """Raises ValueError, TypeError, KeyError."""
        fields = json.loads(text)
        return cls(**{**fields, "reached": tuple(fields["reached"])})
