from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.dataplane.cloud_token_check import CloudTokenCheck
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.rpc import InternalClient, InternalServer

pytestmark = pytest.mark.anyio

GAME = bytes(range(16))


class Plane:
    def __init__(self, folder: Path) -> None:
        self.check_count = 0
        self.is_revoked = False
        check = "hosting.internal.v1.Control.CheckToken"
        self.server = InternalServer({check: self.check}, folder / "grpc.sock")
        self.client = InternalClient(folder / "grpc.sock")
        self.now_s = 100.0
        self.tokens = CloudTokenCheck(self.client, lambda: self.now_s)

    async def check(self, request: control_pb2.CheckTokenRequest) -> control_pb2.CheckTokenResponse:
        self.check_count += 1
        if self.is_revoked:
            raise ServiceError("TOKEN_REVOKED")
        reaches = request.game_id == "00010203-0405-0607-0809-0a0b0c0d0e0f"
        return control_pb2.CheckTokenResponse(
            token_id="t", identity_id="i", game_id="g", reaches_game=reaches
        )


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = Plane(tmp_path)
    await plane.server.start()
    yield plane
    await plane.client.close()
    await plane.server.stop(0.0)


async def _code(plane: Plane) -> str:
    with pytest.raises(ServiceError) as caught:
        await plane.tokens.scope("cloud_x")
    return caught.value.code


async def test_checked_token_is_cached_for_less_than_a_second(plane: Plane) -> None:
    scope = await plane.tokens.scope("cloud_x")
    assert (scope.identity_id, scope.token_id, scope.group_id, scope.game_id) == (
        *("i", "t"),
        None,
        "g",
    )
    plane.is_revoked = True
    plane.now_s += 0.89
    assert await plane.tokens.scope("cloud_x") == scope
    assert plane.check_count == 1
    plane.now_s += 0.05
    assert await _code(plane) == "TOKEN_REVOKED"
    plane.is_revoked = False
    assert await plane.tokens.scope("cloud_x") == scope


async def test_cache_is_per_game(plane: Plane) -> None:
    assert await plane.tokens.reaches("cloud_x", GAME)
    assert not await plane.tokens.reaches("cloud_x", bytes(16))
    assert await plane.tokens.reaches("cloud_x", GAME)
    assert plane.check_count == 2


async def test_check_fails_without_a_control_plane(plane: Plane) -> None:
    await plane.tokens.scope("cloud_x")
    await plane.server.stop(0.0)
    assert (await plane.tokens.scope("cloud_x")).token_id == "t"
    plane.now_s += 1
    assert await _code(plane) == "CONTROL_PLANE_UNAVAILABLE"
