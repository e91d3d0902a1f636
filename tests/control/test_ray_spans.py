"""Spans in a ray: requests between the planes, and the engine."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from pyservice.timestamps import milliseconds
from tests.support.full_service import Developer, ServiceResponse, eventually

pytestmark = pytest.mark.anyio

ENDPOINT = {"game": {"address": "127.0.0.1", "port": 4000}}


class Span(NamedTuple):
    begin: int
    end: int


class PlaneRay:
    def __init__(self, perf: Any) -> None:
        self.plane = perf["svc_name"]
        self.label = perf["spans"][0]["label"]
        self.marks = {mark["label"]: milliseconds(mark["ts"]) for mark in perf["marks"]}
        self._parts = [
            (one["label"], Span(milliseconds(one["start_ts"]), milliseconds(one["finish_ts"])))
            for one in perf["spans"]
        ]

    def all(self, label: str) -> list[Span]:
        return [part for name, part in self._parts if name == label]

    def one(self, label: str) -> Span:
        (part,) = self.all(label)
        return part


async def traced(
    developer: Developer, slug: str, token: str | None = None, **fields: Any
) -> tuple[ServiceResponse, str]:
    ray_id = uuid4().hex
    traceparent = f"00-{ray_id}-{ray_id[:16]}-01"
    client, token = developer.client, token or developer.token
    return await client.call(slug, fields, token=token, traceparent=traceparent), ray_id


async def planes_of(developer: Developer, ray_id: str, count: int) -> list[PlaneRay]:
    async def check() -> list[Any] | None:
        lists = (await developer.good("get_ray_perf", ray_id=ray_id))["perf_lists"]
        return lists if len(lists) == count else None

    return [PlaneRay(perf) for perf in await eventually(check)]


async def fresh_token(developer: Developer, game_id: str) -> str:
    """Returns a new cloud token, which the data plane has not cached."""
    return str((await developer.good("create_game_token", game_id=game_id))["token"])


async def test_attach_ray_has_token_check_engine_and_journal(developer: Developer) -> None:
    game_id = await developer.arena()
    token = await fresh_token(developer, game_id)
    fields = {"game_id": game_id, "namespace_id": "prod", "game_mode": "arena", "ports": ENDPOINT}
    answer, ray_id = await traced(developer, "attach", token, **fields)
    assert answer.code == "OK", answer
    (one,) = await planes_of(developer, ray_id, 1)
    client, handler = one.one(f"{developer.client.name} attach"), one.one("handler")
    # The first check identifies the owner of the token. The second checks the access to the game.
    bearer, game = one.all("token check")
    engine, journal = one.one("engine"), one.one("journal wait")
    assert client.begin <= bearer.begin <= bearer.end <= one.marks["authorized"] <= handler.begin
    assert handler.begin <= game.begin <= game.end <= engine.begin <= engine.end
    assert engine.end <= journal.begin <= journal.end <= handler.end == client.end


async def test_detach_ray_has_engine_and_journal(developer: Developer) -> None:
    game_id = await developer.arena()
    token = await developer.service_token(game_id)
    lobby = await developer.lobby(game_id, token)
    fields = {"game_id": game_id, "lobby_id": lobby["lobby_id"]}
    answer, ray_id = await traced(developer, "detach", token, **fields)
    assert (answer.code, answer.body) == ("OK", {"did_remove": True})
    (one,) = await planes_of(developer, ray_id, 1)
    engine, journal = one.one("engine"), one.one("journal wait")
    handler = one.one("handler")
    assert handler.begin <= engine.begin <= engine.end <= journal.begin <= journal.end
    assert journal.end <= handler.end
    assert one.all("token check") == []
    fields["lobby_id"] = str(uuid4())
    refused, ray_id = await traced(developer, "detach", token, **fields)
    assert refused.code == "MATCHMAKER_LOBBY_NOT_FOUND"
    (one,) = await planes_of(developer, ray_id, 1)
    assert len(one.all("engine")) == 1


async def test_state_read_ray_has_the_engine(developer: Developer) -> None:
    game_id = await developer.arena()
    lobby = await developer.lobby(game_id, await developer.service_token(game_id))
    token = await fresh_token(developer, game_id)
    answer, ray_id = await traced(developer, "get_state", token, lobby_id=lobby["lobby_id"])
    assert answer.code == "OK", answer
    (one,) = await planes_of(developer, ray_id, 1)
    assert len(one.all("token check")) == 2
    assert len(one.all("engine")) == 1


async def test_ray_has_the_wait_for_the_data_plane(developer: Developer) -> None:
    game_id = await developer.arena()
    target = {"game_id": game_id, "namespace_id": "prod"}
    service = {"game_id": game_id, "environment_id": "prod"}
    domain = {"domain": f"{uuid4().hex}.example"}
    version_id = await developer.version(game_id, name="2.0.0")
    response = await developer.good("create_public_token", **target)
    rays: dict[str, str] = {}
    changes: dict[str, dict[str, Any]] = {
        "set_version": {**target, "version_id": version_id},
        "set_mm_config": {**target, "lobby_count_max": 9, "max_players": 99},
        "add_domain": {**target, **domain},
        "set_domain_public_auth": {**target, "enabled": True},
        "remove_domain": {**target, **domain},
        "create_service_token": service,
        "create_public_token": target,
        "create_development_token": target,
        "revoke_namespace_token": {**target, "token_id": response["token_id"]},
    }
    for slug, fields in changes.items():
        answer, rays[slug] = await traced(developer, slug, **fields)
        # If the data plane is too slow, the request fails after a feed wait of one second.
        assert answer.code in ("OK", "CONTROL_PLANE_UNAVAILABLE"), (slug, answer)
    for slug, ray_id in rays.items():
        (one,) = await planes_of(developer, ray_id, 1)
        assert (one.plane, one.label) == ("control-plane", f"{developer.client.name} {slug}")
        handler, wait = one.one("handler"), one.one("feed wait")
        assert handler.begin <= wait.begin <= wait.end <= handler.end, slug
        assert len(one.all("feed check")) == (slug == "set_version"), slug


async def test_ray_without_a_wait_has_no_wait_span(developer: Developer) -> None:
    game_id = await developer.game()
    answer, ray_id = await traced(developer, "get_game", game_id=game_id)
    assert answer.code == "OK", answer
    (one,) = await planes_of(developer, ray_id, 1)
    assert one.all("feed wait") + one.all("token check") == []
