"""Waits of requests for the engine: durable events and starting lobbies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.matchmaker_scene import MatchmakerScene, expect_error
from tests.support.waiting import cancel, until_met

pytestmark = pytest.mark.anyio


async def ready(scene: MatchmakerScene, lobby_id: str) -> None:
    await scene.fleet.ready(pb.LobbyReadyRequest(), scene.server(lobby_id))


def start_finds(scene: MatchmakerScene, count: int, **call: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(scene.find(caller=scene.client(**call))) for _ in range(count)]


async def test_result_is_durable_when_returned(scene: MatchmakerScene) -> None:
    lobby = await scene.attach(is_ready=False)
    status = scene.engine.status()
    assert status.durable == status.last
    await ready(scene, lobby.lobby_id)
    await scene.find()
    status = scene.engine.status()
    assert status.durable == status.last


async def test_shared_hold_is_released_with_its_last_request(scene: MatchmakerScene) -> None:
    lobby = await scene.attach(is_ready=False)
    *cancelled, waiting = start_finds(scene, 3, idempotency_key="k")
    await until_met(lambda: scene.held_slots(lobby.lobby_id) == 1)
    await cancel(*cancelled)
    assert scene.held_slots(lobby.lobby_id) == 1
    [again] = start_finds(scene, 1, idempotency_key="k")
    await asyncio.sleep(0)
    await ready(scene, lobby.lobby_id)
    first, second = await asyncio.gather(waiting, again)
    assert first == second
    assert scene.slot_counts(lobby.lobby_id) == (0, 1, 0, 0)


@pytest.mark.parametrize("wait_s", [0.05, 60])
async def test_hold_expires_with_its_limit_or_the_caller_deadline(
    scene: MatchmakerScene, wait_s: float
) -> None:
    lobby = await scene.attach(is_ready=False)
    scene.engine._waiter._longest_hold_s = wait_s
    deadline = asyncio.get_running_loop().time() + 60.05 - wait_s
    error = await expect_error(scene.find(caller=scene.client(deadline=deadline)))
    assert error.code == "DEADLINE_EXCEEDED"
    assert error.metadata == {"lobby_id": lobby.lobby_id, "reason": "lobby_not_ready"}
    assert scene.held_slots(lobby.lobby_id) == 0


async def test_shutdown_cancels_waiting_finds(scene: MatchmakerScene) -> None:
    lobby = await scene.attach(is_ready=False)
    [finding] = start_finds(scene, 1)
    await until_met(lambda: scene.held_slots(lobby.lobby_id) == 1)
    scene.engine.cancel_holds()
    assert (await expect_error(finding)).code == "SHUTTING_DOWN"
    assert scene.held_slots(lobby.lobby_id) == 0


async def test_idempotency_needs_a_key(engine: Engine) -> None:
    message = pb.JoinLobbyRequest(lobby_id="x")

    def idempotency(key: str | None, operation: str = "create") -> bytes | None:
        call = Call("0" * 32, b"", idempotency_key=key)
        return engine.idempotency(
            Caller(TokenKind.PUBLIC, b"", b"", b"c", call), operation, message
        )

    assert idempotency(None) is None
    one = idempotency("key")
    assert one is not None
    assert len(one) == 32
    assert one == idempotency("key")
    assert one != idempotency("key", "attach")
