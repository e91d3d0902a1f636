"""What a configuration is judged against besides itself: the operator's settings and the records."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Literal

from pyservice.port_ranges import HOST_PORTS

Completeness = Literal["complete", "incomplete"]
"""How far an upload of the game has come. One that does not exist has none."""


@dataclass(frozen=True, slots=True)
class Context:
    """Settings of the operator, and what the records say of the ids in the configuration."""

    player_limit_max: int
    regions: Collection[str]
    tiers: Collection[str]
    builds: Mapping[str, Completeness]
    """Of the ids of `image_ids`, those that are builds of the game."""
    sites: Mapping[str, Completeness] | None = None
    """Of the ids of `site_ids`, those that are sites of the game. None: not judged."""
    captcha_providers: Collection[str] = ()
    """`captcha_a` and `captcha_b`: those that the operator has set the URL of."""
    host_ports: range = HOST_PORTS
    verification_allowed_networks: Sequence[IPv4Network | IPv6Network] = ()
    """Networks that are not public and may be named by a verification address all the same."""
