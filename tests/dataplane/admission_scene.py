"""Matchmaker with captcha and verification against real HTTP servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.admission import Admission
from pyservice.dataplane.admission_checks import CaptchaCheck, VerificationCheck
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.network.hosts import AllowedDestinations, allow_any
from tests.support.matchmaker_scene import MODES, MatchmakerScene
from tests.support.namespace_configurations import version

CAPTCHA_RULE = {
    "captcha_a": {"secret_key": "s", "site_key": "k"},
    "requests_before_reverify": 3,
    "verification_ttl": 60_000,
}


class AdmissionScene(MatchmakerScene):
    def __init__(self, engine: Engine, timeout_ms: int, endpoints: dict[Any, str]) -> None:
        super().__init__(engine)
        loopback = AllowedDestinations((ip_network("127.0.0.0/8"),))
        self.to_games = OutboundHttpClient(loopback, timeout_ms=timeout_ms)
        self.to_providers = OutboundHttpClient(allow_any, timeout_ms=timeout_ms)
        self.entrance = Admission(
            self.native,
            engine,
            self.namespaces,
            CaptchaCheck(self.to_providers, engine.player_records, endpoints),
            VerificationCheck(self.to_games),
        )
        self.wire(admission=self.entrance)

    def ask(
        self, captcha: Any = None, feed_fields: dict[str, Any] | None = None, **urls: str
    ) -> None:
        modes: dict[str, Any] = {name: {**mode} for name, mode in MODES.items()}
        for name, url in urls.items():
            mode, action = name.split("_")
            actions = modes[mode].setdefault("actions", {})
            headers = {"X-Game-Key": "s3cret"}
            actions[action] = {"enabled": True, "verification": {"url": url, "headers": headers}}
        level = {} if captcha is None else {"captcha": captcha}
        self.feed(versions=[version(level=level, **modes)], **(feed_fields or {}))

    async def close(self) -> None:
        await self.to_games.close()
        await self.to_providers.close()


@asynccontextmanager
async def admission_scene(
    engine: Engine, timeout_ms: int = 5_000, **endpoints: str
) -> AsyncIterator[AdmissionScene]:
    scene = AdmissionScene(engine, timeout_ms, endpoints)
    yield scene
    await scene.close()


@pytest.fixture
async def scene(engine: Engine) -> AsyncIterator[AdmissionScene]:
    async with admission_scene(engine) as scene:
        yield scene
