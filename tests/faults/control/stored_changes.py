"""Changes that need the data plane: the fields of each request, and the check of its effect."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx

from tests.support.full_service import (
    ARENA_MODES,
    Developer,
    FullService,
    GrpcClient,
    HttpClient,
    ServiceClient,
)
from tests.support.unknown_namespace import full_service as full_service

TRANSPORTS: Final = ("http", "grpc")
Fields = dict[str, Any]


class UnixHttpClient(HttpClient):
    def __init__(self, path: Path) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)),
            base_url="http://control",
            timeout=60.0,
        )


def control_client(full_service: FullService, transport: str) -> ServiceClient:
    folder = full_service.data_dir / "control"
    if transport == "http":
        return UnixHttpClient(folder / "http.sock")
    return GrpcClient(f"unix:{folder / 'grpc.sock'}")


class ChangeFixture:
    def __init__(self, full_service: FullService, transport: str) -> None:
        self.full_service = full_service
        self.outer = full_service.client(transport)
        self.inner = control_client(full_service, transport)
        self.developer = Developer(full_service, self.outer)
        self.inside = Developer(full_service, self.inner)

    async def prepare(self) -> ChangeFixture:
        self.game_id = await self.developer.arena()
        self.namespace_fields = {"game_id": self.game_id, "namespace_id": "prod"}
        self.domain = f"{uuid4().hex[:16]}.example"
        await self.developer.good("add_domain", **self.namespace_fields, domain=self.domain)
        return self

    async def close(self) -> None:
        await self.outer.close()
        await self.inner.close()

    async def regions(self, **credentials: Any) -> str:
        return (await self.outer.call("regions", {}, **credentials)).code

    async def page(self) -> tuple[str, list[str]]:
        answer = await self.outer.call("list", {}, origin=f"https://{self.domain}")
        modes = answer.body["game_modes"] if answer.code == "OK" else []
        return answer.code, [one["game_mode_id"] for one in modes]

    async def tokens(self, kind: str) -> int:
        response = await self.developer.good("list_namespace_tokens", **self.namespace_fields)
        return sum(one["kind"] == kind for one in response["tokens"])


Effect = Callable[[Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Change:
    slug: str
    prepare: Callable[[ChangeFixture], Awaitable[tuple[Fields, Effect]]]

    def __str__(self) -> str:
        return self.slug


CHANGES: dict[str, Change] = {}


def change(
    slug: str,
) -> Callable[[Callable[[ChangeFixture], Awaitable[tuple[Fields, Effect]]]], None]:
    def register(prepare: Callable[[ChangeFixture], Awaitable[tuple[Fields, Effect]]]) -> None:
        CHANGES[slug] = Change(slug, prepare)

    return register


@change("set_version")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    modes = {"other": ARENA_MODES["arena"]}
    config = {"matchmaker": {"game_modes": modes}}
    version_id = await fixture.developer.version(fixture.game_id, config)
    token = await fixture.developer.public_token(fixture.game_id)

    async def effect(_: Any) -> None:
        response = await fixture.outer.call("list", {}, token=token)
        assert [one["game_mode_id"] for one in response.body["game_modes"]] == ["other"]
        history = await fixture.developer.good("version_history", **fixture.namespace_fields)
        ran = [one["version_id"] for one in history["versions"]]
        assert (ran[0], ran.count(version_id)) == (version_id, 1)

    return {"version_id": version_id}, effect


@change("set_mm_config")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    service_token = await fixture.developer.service_token(fixture.game_id)

    async def effect(_: Any) -> None:
        await fixture.developer.lobby(fixture.game_id, service_token)
        ports = {"game": {"address": "127.0.0.1", "port": 4000}}
        fields = {**fixture.namespace_fields, "game_mode": "arena", "ports": ports}
        answer = await fixture.outer.call("attach", fields, token=service_token)
        assert answer.code == "MATCHMAKER_TOO_MANY_LOBBIES"

    return {"lobby_count_max": 1, "max_players": 7}, effect


@change("patch_mm_config")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    token = await fixture.developer.public_token(fixture.game_id)
    service_token = await fixture.developer.service_token(fixture.game_id)

    async def effect(_: Any) -> None:
        lobby = await fixture.developer.lobby(fixture.game_id, service_token)
        joins = [
            (await fixture.outer.call("join", {"lobby_id": lobby["lobby_id"]}, token=token)).code
            for _ in range(2)
        ]
        assert joins == ["OK", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"]

    return {"max_players_per_client": 1}, effect


@change("set_domain_public_auth")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    page = {"origin": f"https://{fixture.domain}"}
    await fixture.developer.good(
        "set_domain_public_auth", **fixture.namespace_fields, enabled=False
    )
    assert await fixture.regions(**page) == "TOKEN_MISSING"

    async def effect(_: Any) -> None:
        assert await fixture.regions(**page) == "OK"

    return {"enabled": True}, effect


@change("add_domain")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    domain = f"{uuid4().hex[:16]}.example"

    async def effect(_: Any) -> None:
        assert await fixture.regions(origin=f"https://{domain}") == "OK"

    return {"domain": domain}, effect


@change("remove_domain")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    async def effect(_: Any) -> None:
        assert await fixture.regions(origin=f"https://{fixture.domain}") == "TOKEN_MISSING"

    return {"domain": fixture.domain}, effect


@change("create_service_token")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    async def effect(body: Any) -> None:
        await fixture.developer.lobby(fixture.game_id, body["token"])
        assert await fixture.tokens("env") == 1

    return {"environment_id": "prod"}, effect


@change("create_public_token")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    async def effect(body: Any) -> None:
        assert await fixture.regions(token=body["token"]) == "OK"
        assert await fixture.tokens("pub") == 1

    return {}, effect


@change("create_development_token")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    async def effect(body: Any) -> None:
        assert await fixture.regions(token=body["token"]) == "OK"
        assert await fixture.tokens("dev") == 1

    return {"hostname": "127.0.0.1", "ports": {}}, effect


@change("revoke_namespace_token")
async def _(fixture: ChangeFixture) -> tuple[Fields, Effect]:
    response = await fixture.developer.good("create_public_token", **fixture.namespace_fields)

    async def effect(_: Any) -> None:
        assert await fixture.regions(token=response["token"]) == "TOKEN_REVOKED"

    return {"token_id": response["token_id"]}, effect


@contextlib.contextmanager
def suspended_data_plane(full_service: FullService) -> Iterator[None]:
    """Stops the data plane by SIGSTOP within the block."""
    pid = int((full_service.data_dir / "LOCK").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
