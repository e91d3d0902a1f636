"""A data plane without doors whose namespace asks: real servers on the other side, a real engine.
Who passed a captcha is remembered in memory here; the engine's own memory has tests of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.admission import Admission
from pyservice.dataplane.admission_checks import CaptchaCheck, VerificationCheck
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.errors import ServiceError
from pyservice.network.hosts import AllowedAddresses, anywhere
from tests.dataplane.configurations import version
from tests.dataplane.scene import MODES, Scene


class MemoryStandings:
    """Standings with a clock that tests move."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.passed: dict[tuple[bytes, bytes], tuple[int, int]] = {}

    def last_pass(self, namespace_id: bytes, address: bytes) -> tuple[int | None, int]:
        known = self.passed.get((namespace_id, address))
        return known or (None, 0)

    async def record_pass(
        self, namespace_id: bytes, address: bytes, deadline: float | None
    ) -> None:
        self.passed[namespace_id, address] = (self.now_ms, 0)

    def record_request(self, namespace_id: bytes, address: bytes) -> None:
        passed_ms, requests = self.passed[namespace_id, address]
        self.passed[namespace_id, address] = (passed_ms, requests + 1)


class GatedScene(Scene):
    """Joins and finds meet captcha and verification. Nothing is asked until it is fed."""

    def __init__(self, engine: Engine, timeout_ms: int, endpoints: dict[Any, str]) -> None:
        super().__init__(engine)
        self.passes = MemoryStandings()
        loopback = AllowedAddresses((ip_network("127.0.0.0/8"),))
        self.to_games = OutboundHttpClient(loopback, timeout_ms=timeout_ms)
        self.to_providers = OutboundHttpClient(anywhere, timeout_ms=timeout_ms)
        self.entrance = Admission(
            engine,
            self.namespaces,
            self.matchmaker._regions,
            CaptchaCheck(self.to_providers, self.passes, endpoints, lambda: self.passes.now_ms),
            VerificationCheck(self.to_games),
        )
        self.matchmaker = Matchmaker(
            engine, self.namespaces, self.matchmaker._regions, self.entrance
        )

    def ask(self, captcha: Any = None, fed: dict[str, Any] | None = None, **urls: str) -> None:
        """Feeds: a captcha rule, and URLs of verification by `mode_action`, such as duel_find. `fed`
        are other fields of the namespace.
        """
        modes: dict[str, Any] = {name: {**mode} for name, mode in MODES.items()}
        for name, url in urls.items():
            mode, action = name.split("_")
            actions = modes[mode].setdefault("actions", {})
            headers = {"X-Game-Key": "s3cret"}
            actions[action] = {"enabled": True, "verification": {"url": url, "headers": headers}}
        level = {} if captcha is None else {"captcha": captcha}
        self.feed(versions=[version(level=level, **modes)], **(fed or {}))

    async def close(self) -> None:
        await self.to_games.close()
        await self.to_providers.close()


@asynccontextmanager
async def gated_scene(
    engine: Engine, timeout_ms: int = 5_000, **endpoints: str
) -> AsyncIterator[GatedScene]:
    """`endpoints`: URLs of captcha_a and captcha_b."""
    scene = GatedScene(engine, timeout_ms, endpoints)
    yield scene
    await scene.close()


async def refusal(work: Awaitable[Any]) -> ServiceError:
    """What the work raises."""
    with pytest.raises(ServiceError) as caught:
        await work
    return caught.value
