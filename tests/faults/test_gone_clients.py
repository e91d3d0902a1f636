"""Who waits for a lobby that starts holds a place; when the client goes, its place is free again,
through either door, however it goes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.faults.actors import LobbyActor, Scene, until
from tests.faults.conftest import MakePlane, OpenDoors
from tests.faults.doors import Answer, Door, Doors, GrpcDoor, HttpDoor, Lost
from tests.faults.plane import Plane

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FIND_WAIT_MS = 120_000
START_LIMIT_MS = 120_000
"""Longer than anybody has patience here: who goes leaves the place, and not the time."""


@pytest.fixture
async def plane(make_plane: MakePlane) -> Plane:
    settings = {"find_wait_ms": FIND_WAIT_MS, "start_limit_ms": START_LIMIT_MS}
    plane = make_plane(shim=None, settings=settings)
    await plane.start()
    return plane


@pytest.fixture
async def scene(plane: Plane, open_doors: OpenDoors) -> Scene:
    return Scene(plane, open_doors(plane).http, await plane.public_token())


def fields_of(operation: str, lobby: LobbyActor) -> dict[str, Any]:
    return {"game_modes": ["single"]} if operation == "find" else {"lobby_id": lobby.id}


async def held(plane: Plane) -> float:
    return await plane.metric("hosting_slots", state="held")


async def wait_held(plane: Plane, count: int) -> None:
    async def is_so() -> bool:
        return await held(plane) == count

    await until(is_so, f"{count} places to be held")


async def give_up(door: Door, request: asyncio.Task[Answer]) -> None:
    """The request is cancelled: HTTP drops its connection, gRPC resets the stream."""
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize("operation", ["find", "join"])
@pytest.mark.parametrize("name", ["http", "grpc"])
async def test_a_client_that_goes_while_it_waits_leaves_its_place(
    plane: Plane, scene: Scene, open_doors: OpenDoors, operation: str, name: str
) -> None:
    doors = {door.name: door for door in open_doors(plane)}
    door, other = doors.pop(name), next(iter(doors.values()))
    lobby = await scene.attach("single", is_ready=False)
    fields, token = fields_of(operation, lobby), scene.client_token
    leaving = asyncio.create_task(door.call(operation, fields, token=token))
    await wait_held(plane, 1)
    # The one place is held: nobody else gets it.
    refused = await other.call(operation, fields, token=token)
    assert refused.code in ("MATCHMAKER_LOBBY_FULL", "MATCHMAKER_NO_AVAILABLE_LOBBIES")
    await give_up(door, leaving)
    await wait_held(plane, 0)
    staying = asyncio.create_task(other.call(operation, fields, token=token))
    await wait_held(plane, 1)
    await scene.must("ready", token=lobby.token)
    answer = await staying
    assert answer.code == "OK", answer
    await scene.must("connected", {"player_token": answer.tokens[0]}, token=lobby.token)


@pytest.mark.parametrize("name", ["http", "grpc"])
async def test_a_whole_connection_that_dies_leaves_all_its_places(
    plane: Plane, scene: Scene, name: str
) -> None:
    door = plane.http_door() if name == "http" else plane.grpc_door()
    lobby = await scene.attach("duel", is_ready=False)
    waiting = [
        asyncio.create_task(door.call("join", {"lobby_id": lobby.id}, token=scene.client_token))
        for _ in range(8)
    ]
    await wait_held(plane, 8)
    if isinstance(door, GrpcDoor):
        await door.close()
    else:
        for request in waiting:
            request.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, Lost | asyncio.CancelledError) for one in results), results
    await wait_held(plane, 0)
    await door.close()


async def test_a_half_closed_connection_does_not_keep_a_place(plane: Plane, scene: Scene) -> None:
    lobby = await scene.attach("single", is_ready=False)
    http = plane.http_door()
    text = json.dumps({"lobby_id": lobby.id}).encode()
    lines = (
        "POST /matchmaker/lobbies/join HTTP/1.1",
        "host: x",
        f"authorization: Bearer {scene.client_token}",
        f"content-length: {len(text)}",
    )
    _, writer = await asyncio.open_connection(http.host, http.port)
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + text)
    await wait_held(plane, 1)
    writer.close()
    await writer.wait_closed()
    await wait_held(plane, 0)


async def test_of_two_requests_with_one_key_the_last_to_go_takes_the_place_along(
    plane: Plane, scene: Scene, open_doors: OpenDoors
) -> None:
    doors: Doors = open_doors(plane)
    lobby = await scene.attach("single", is_ready=False)
    fields, token = {"lobby_id": lobby.id}, scene.client_token
    first, second = (
        asyncio.create_task(door.call("join", fields, token=token, key="shared")) for door in doors
    )
    await plane.wait_metric("hosting_requests_in_flight", 2)
    await wait_held(plane, 1)
    await give_up(doors.http, first)

    async def is_one_left() -> bool:
        return await plane.metric("hosting_requests_in_flight") == 1

    await until(is_one_left, "the first request to be gone")
    assert await held(plane) == 1
    await give_up(doors.grpc, second)
    await wait_held(plane, 0)


@pytest.mark.parametrize("name", ["http", "grpc"])
async def test_who_waits_too_long_is_told_so_and_the_place_is_free(
    make_plane: MakePlane, open_doors: OpenDoors, name: str
) -> None:
    plane = make_plane(shim=None, settings={"find_wait_ms": 3_000, "start_limit_ms": 120_000})
    await plane.start()
    doors = open_doors(plane)
    scene = Scene(plane, doors.http, await plane.public_token())
    (door,) = (door for door in doors if door.name == name)
    await scene.attach("single", is_ready=False)
    answer = await door.call("find", {"game_modes": ["single"]}, token=scene.client_token)
    assert answer.code == "DEADLINE_EXCEEDED"
    assert answer.status in ("504", "DEADLINE_EXCEEDED")
    assert await held(plane) == 0


@pytest.mark.parametrize(("end", "reason"), [("detach", "removed"), ("wait", "start_timeout")])
async def test_a_lobby_that_never_starts_tells_all_who_wait(
    make_plane: MakePlane, open_doors: OpenDoors, end: str, reason: str
) -> None:
    start_limit_ms = 1_500 if end == "wait" else START_LIMIT_MS
    plane = make_plane(shim=None, settings={"start_limit_ms": start_limit_ms})
    await plane.start()
    doors = open_doors(plane)
    scene = Scene(plane, doors.http, await plane.public_token())
    lobby = await scene.attach("duel", is_ready=False)
    waiting = [
        asyncio.create_task(door.call("join", {"lobby_id": lobby.id}, token=scene.client_token))
        for door in doors
    ]
    if end == "detach":
        await wait_held(plane, 2)
        await scene.detach(lobby)
    for request in waiting:
        answer = await request
        assert answer.code == "MATCHMAKER_LOBBY_START_FAILED", answer
        assert answer.metadata["reason"] == reason
        assert answer.metadata["lobby_id"] == lobby.id
    # A client that comes now is told what became of it.
    late = await doors.http.call("join", {"lobby_id": lobby.id}, token=scene.client_token)
    assert late.code == "MATCHMAKER_LOBBY_STOPPED"


async def test_a_lost_client_changes_nothing_once_its_place_is_reserved(
    plane: Plane, scene: Scene
) -> None:
    """The answer is on its way when the client goes: the reservation stays until its deadline."""
    lobby = await scene.attach("single")
    leaving: HttpDoor = plane.http_door()
    text = json.dumps({"lobby_id": lobby.id}).encode()
    headers = {"authorization": f"Bearer {scene.client_token}", "idempotency-key": "mine"}
    answered = await leaving.request("POST", "/matchmaker/lobbies/join", headers, text)
    await leaving.close()
    assert answered.status == 200
    full = await scene.door.call("join", {"lobby_id": lobby.id}, token=scene.client_token)
    assert full.code == "MATCHMAKER_LOBBY_FULL"
    again = await scene.must("join", {"lobby_id": lobby.id}, token=scene.client_token, key="mine")
    assert again.tokens == [json.loads(answered.body)["player"]["token"]]
