"""Rays of requests over both planes, and their export to a collector."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from time import perf_counter
from typing import Any
from uuid import uuid4

import grpc
import httpx
import pytest
from aiohttp import web
from sqlalchemy import select

from pyservice.observability.rays import SLOW_S
from pyservice.storage.tables import rays
from pyservice.timestamps import milliseconds
from tests.support.full_service import (
    ARENA_MODES,
    BY_SLUG,
    Developer,
    FullService,
    HttpClient,
    ServiceResponse,
    eventually,
    running,
)
from tests.support.namespace_scenario import Records
from tests.support.otlp_collector import Collector, ExportedSpan, running_collector
from tests.support.third_party_server import ThirdPartyServer, third_party_server

pytestmark = pytest.mark.anyio

WEBHOOK_MS = 250
PARENT = "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def full_service(
    tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[FullService]:
    settings: dict[str, Any] = {
        "verification_allowed_networks": ["127.0.0.0/8"],
        "rays": {"otlp_endpoint": collector.url},
    }
    with running(FullService(tmp_path_factory.mktemp("rays"), **settings)) as full_service:
        yield full_service


@pytest.fixture
def ray_reader(owner: Developer) -> Developer:
    return owner


async def get(
    ray_reader: Developer, path: str, token: str | None = None
) -> tuple[str, httpx.Response]:
    """Requests a path over HTTP, and returns the ray id and the response."""
    assert isinstance(ray_reader.client, HttpClient)
    ray_id, headers = fresh_trace()
    answer = await ray_reader.client.request(
        "GET", path, token=token or ray_reader.token, headers=headers
    )
    return ray_id, answer


@pytest.fixture
async def verifier() -> AsyncIterator[ThirdPartyServer]:
    async def slowly(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(WEBHOOK_MS / 1000)
        return web.Response()

    async with third_party_server() as server:
        server.reply = slowly
        yield server


async def gated_lobby(ray_reader: Developer, verifier: ThirdPartyServer) -> tuple[str, str, str]:
    game_id = await ray_reader.game()
    verification = {"url": verifier.url(), "headers": {"x-game-key": "s3cret"}}
    actions = {"join": {"enabled": True, "verification": verification}}
    modes = {"arena": {**ARENA_MODES["arena"], "actions": actions}}
    version_id = await ray_reader.version(game_id, {"matchmaker": {"game_modes": modes}})
    await ray_reader.good(
        "set_version", game_id=game_id, namespace_id="prod", version_id=version_id
    )
    lobby = await ray_reader.lobby(game_id, await ray_reader.service_token(game_id))
    return game_id, lobby["lobby_id"], await ray_reader.public_token(game_id)


async def perf(ray_reader: Developer, ray_id: str, token: str | None = None) -> list[Any]:
    answer = await ray_reader.client.call(
        "get_ray_perf", {"ray_id": ray_id}, token=token or ray_reader.token
    )
    assert answer.code == "OK", answer
    lists: list[Any] = answer.body["perf_lists"]
    return lists


async def whole(ray_reader: Developer, ray_id: str, count: int) -> list[Any]:
    async def check() -> list[Any] | None:
        lists = await perf(ray_reader, ray_id)
        return lists if len(lists) == count else None

    span_sets: list[Any] = await eventually(check)
    return span_sets


async def exported(collector: Collector, ray_id: str, count: int) -> list[ExportedSpan]:
    async def check() -> list[ExportedSpan] | None:
        spans = collector.of_ray(ray_id)
        roots = [span for span in spans if span.name.startswith(("http ", "grpc "))]
        return spans if len(roots) == count else None

    exported_spans: list[ExportedSpan] = await eventually(check)
    return exported_spans


def fresh_trace() -> tuple[str, dict[str, str]]:
    ray_id = uuid4().hex
    return ray_id, {"traceparent": f"00-{ray_id}-{PARENT}-00"}


async def test_slow_join_ray_has_every_span(
    ray_reader: Developer, verifier: ThirdPartyServer, collector: Collector
) -> None:
    _, lobby_id, player = await gated_lobby(ray_reader, verifier)
    before_ms = time.time() * 1000
    answer = await ray_reader.client.call("join", {"lobby_id": lobby_id}, token=player)
    after_ms = time.time() * 1000
    assert answer.code == "OK", answer
    ray_id = answer.headers["x-ray-id"]

    (one,) = await whole(ray_reader, ray_id, 1)
    assert one["svc_name"] == "data-plane"
    assert WEBHOOK_MS * 1e6 <= one["duration"] <= (after_ms - before_ms) * 1e6
    assert before_ms - 1 <= milliseconds(one["ts"]) <= after_ms
    spans = {span["label"]: span for span in one["spans"]}
    assert {"http join", "handler", "engine", "journal wait", "webhook"} <= spans.keys()
    lasted = {
        label: milliseconds(span["finish_ts"]) - milliseconds(span["start_ts"])
        for label, span in spans.items()
    }
    assert WEBHOOK_MS - 1 <= lasted["webhook"] <= lasted["handler"] + 1
    assert lasted["handler"] <= lasted["http join"] + 1 <= after_ms - before_ms + 2
    # Verification runs before the engine.
    assert milliseconds(spans["engine"]["start_ts"]) >= milliseconds(spans["webhook"]["finish_ts"])
    assert {span["req_id"] for span in one["spans"]} == {one["req_id"]}
    assert [mark["label"] for mark in one["marks"]] == [
        "authorized",
        f"lobby {lobby_id}",
        "answered OK",
    ]
    assert {mark["ray_id"] for mark in one["marks"]} == {ray_id}

    exported_spans = {span.name: span for span in await exported(collector, ray_id, 1)}
    root, handler, webhook = (
        exported_spans["http join"],
        exported_spans["handler"],
        exported_spans["webhook"],
    )
    assert root.parent_span_id == ""
    assert handler.parent_span_id == root.span_id
    assert {
        exported_spans[name].parent_span_id for name in ("webhook", "engine", "journal wait")
    } == {handler.span_id}
    assert verifier.requests[0].headers["traceparent"] == f"00-{ray_id}-{webhook.span_id}-01"
    assert WEBHOOK_MS <= webhook.ms <= handler.ms <= root.ms <= after_ms - before_ms
    inner = [span for span in exported_spans.values() if span is not root]
    assert all(root.start_ns <= span.start_ns <= span.end_ns <= root.end_ns for span in inner)
    assert exported_spans["engine"].ms > 0
    assert exported_spans["engine"].start_ns >= webhook.end_ns
    assert exported_spans["journal wait"].start_ns >= exported_spans["engine"].start_ns


async def test_control_plane_ray_continues_the_trace_of_its_client(
    ray_reader: Developer, collector: Collector
) -> None:
    game_id = await ray_reader.game()
    ray_id, answer = await get(ray_reader, f"/cloud/games/{game_id}")
    assert (answer.status_code, answer.headers["x-ray-id"]) == (200, ray_id)
    (one,) = await whole(ray_reader, ray_id, 1)
    assert one["svc_name"] == "control-plane"
    assert {"http get_game", "handler"} <= {span["label"] for span in one["spans"]}

    spans = {(span.service, span.name): span for span in await exported(collector, ray_id, 1)}
    assert spans["control-plane", "http get_game"].parent_span_id == PARENT


async def test_grpc_request_has_a_ray(full_service: FullService, ray_reader: Developer) -> None:
    game_id = await ray_reader.game()
    ray_id, headers = fresh_trace()
    method = BY_SLUG["get_game"]
    metadata = (*headers.items(), ("authorization", f"Bearer {ray_reader.token}"))
    async with grpc.aio.insecure_channel(full_service.ready["grpc"]) as channel:
        call = channel.unary_unary(
            method.grpc_path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )(method.request(game_id=game_id), metadata=metadata)
        await call
        trailers = dict(await call.trailing_metadata() or ())
    assert trailers["x-ray-id"] == ray_id
    (one,) = await whole(ray_reader, ray_id, 1)
    assert one["spans"][0]["label"] == "grpc get_game"


async def test_lobby_server_ray_belongs_to_its_game(ray_reader: Developer) -> None:
    game_id = await ray_reader.arena()
    lobby = await ray_reader.lobby(game_id, await ray_reader.service_token(game_id))
    player = await ray_reader.public_token(game_id)
    join_response = await ray_reader.client.call(
        "join", {"lobby_id": lobby["lobby_id"]}, token=player
    )
    ray_id, headers = fresh_trace()
    client = ray_reader.client
    assert isinstance(client, HttpClient)
    content = json.dumps({"player_token": join_response.body["player"]["token"]}).encode()
    path = "/matchmaker/players/connected"
    token = lobby["lobby_token"]
    answer = await client.request("POST", path, content, token=token, headers=headers)
    assert answer.status_code == 200, answer.text
    (one,) = await whole(ray_reader, ray_id, 1)
    assert {"handler", "engine"} <= {span["label"] for span in one["spans"]}


async def test_failed_request_is_kept_and_success_is_sampled(ray_reader: Developer) -> None:
    game_id = await ray_reader.game()
    failed = await ray_reader.call("get_version", game_id=game_id, version_id=str(uuid4()))
    assert failed.code == "VERSION_NOT_FOUND"
    (one,) = await whole(ray_reader, failed.headers["x-ray-id"], 1)
    assert one["marks"][-1]["label"] == "answered VERSION_NOT_FOUND"
    fine: list[ServiceResponse] = []
    while len(fine) < 40:
        began = perf_counter()
        answer = await ray_reader.call("get_game", game_id=game_id)
        # The service stores the rays of all slow requests, but only few of fast ones.
        if perf_counter() - began < SLOW_S:
            fine.append(answer)
    # Rays are stored in order, so the earlier rays are stored before the ray of this request.
    failed = await ray_reader.call("get_version", game_id=game_id, version_id=str(uuid4()))
    await whole(ray_reader, failed.headers["x-ray-id"], 1)
    sampled = [one for one in fine if await perf(ray_reader, one.headers["x-ray-id"])]
    assert len(sampled) < len(fine) / 2


async def test_ray_needs_a_token_that_covers_its_request(
    ray_reader: Developer, verifier: ThirdPartyServer
) -> None:
    game_id, lobby_id, player = await gated_lobby(ray_reader, verifier)
    of_game = (await ray_reader.good("create_game_token", game_id=game_id))["token"]
    of_other = (await ray_reader.good("create_game_token", game_id=await ray_reader.game()))[
        "token"
    ]
    join_response = await ray_reader.client.call("join", {"lobby_id": lobby_id}, token=player)
    query_ray, _ = await get(ray_reader, f"/cloud/games/{game_id}")
    group_ray, _ = await get(ray_reader, "/cloud/games")
    for ray_id in (join_response.headers["x-ray-id"], query_ray):
        await whole(ray_reader, ray_id, 1)
        assert len(await perf(ray_reader, ray_id, of_game)) == 1
        assert await perf(ray_reader, ray_id, of_other) == []
    await whole(ray_reader, group_ray, 1)
    assert await perf(ray_reader, group_ray, of_game) == []


async def test_reused_ray_id_shows_own_requests_only(ray_reader: Developer) -> None:
    game_id, other_id = await ray_reader.game(), await ray_reader.game()
    of_game = (await ray_reader.good("create_game_token", game_id=game_id))["token"]
    of_other = (await ray_reader.good("create_game_token", game_id=other_id))["token"]
    ray_id, headers = fresh_trace()
    client = ray_reader.client
    assert isinstance(client, HttpClient)
    await client.request("GET", f"/cloud/games/{game_id}", token=of_game, headers=headers)
    await client.request("GET", f"/cloud/games/{game_id}", token=of_other, headers=headers)
    everything = await whole(ray_reader, ray_id, 2)
    others = await perf(ray_reader, ray_id, of_other)
    assert [one["svc_name"] for one in others] == ["control-plane"]
    assert "answered GAME_NOT_FOUND" in [mark["label"] for one in others for mark in one["marks"]]
    own = await perf(ray_reader, ray_id, of_game)
    assert {one["req_id"] for one in own}.isdisjoint(one["req_id"] for one in others)
    assert len(everything) == len(others) + len(own)


async def test_malformed_ray_id_is_refused_and_an_unknown_one_is_empty(
    ray_reader: Developer,
) -> None:
    for ray_id in ("x", "0" * 31, "0" * 33, "G" * 32, "A" * 32):
        assert await ray_reader.code("get_ray_perf", ray_id=ray_id) == "ID_INVALID"
    unknown = await ray_reader.good("get_ray_perf", ray_id=uuid4().hex)
    assert unknown["perf_lists"] == []
    assert unknown["detail"].startswith("No record of this ray was kept")


async def test_rays_contain_no_secret(
    records: Records, ray_reader: Developer, verifier: ThirdPartyServer, collector: Collector
) -> None:
    _game_id, lobby_id, player = await gated_lobby(ray_reader, verifier)
    join_response = await ray_reader.client.call("join", {"lobby_id": lobby_id}, token=player)
    ray_id = join_response.headers["x-ray-id"]
    await whole(ray_reader, ray_id, 1)
    await exported(collector, ray_id, 1)
    async with records.database.read() as tx:
        rows = await tx.all(select(rays.c.span_set))
    stored = b"".join([*(row.span_set for row in rows), *collector.bodies])
    assert ray_id.encode() in stored
    secrets = (
        ray_reader.token,
        player,
        join_response.body["player"]["token"],
        "127.0.0.1",
        "s3cret",
        "/ask",
    )
    assert [secret for secret in secrets if secret.encode() in stored] == []


async def test_impossible_game_id_does_not_stop_storage(ray_reader: Developer) -> None:
    for game_id, status in (("a%00b", 400), (await ray_reader.game(), 200)):
        ray_id, answer = await get(ray_reader, f"/cloud/games/{game_id}")
        assert answer.status_code == status
        await whole(ray_reader, ray_id, 1)
