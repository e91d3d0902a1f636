from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pyservice.edge import endpoint
from pyservice.pb.hosting.v1 import games_pb2
from pyservice.rpc import grpc_server
from tests.support.sample_control_plane import (
    BILLING,
    GAMES,
    VALIDATE,
    ControlServers,
    SmallControl,
)
from tests.support.sample_service import (
    HttpConnection,
    code_of,
)
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

CLOUD = {"authorization": "Bearer cloud_a"}
UNKNOWN = b'{"display_name":"a"' + b"".join(b',"%x":1' % number for number in range(60_000)) + b"}"
LONG = "x" * 600_000


class Stopped:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, slug: str = "validate_game"
    ) -> None:
        self._slug = slug
        self.go_on = threading.Event()
        self.threads: list[str] = []
        self._judge = module.refuse_invalid
        monkeypatch.setattr(module, "refuse_invalid", self._refuse_invalid)

    def _refuse_invalid(self, method: Any, message: Any, *unread: Any) -> None:
        if method.slug == self._slug:
            self.threads.append(threading.current_thread().name)
            self.go_on.wait(20)
        self._judge(method, message, *unread)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[ControlServers]:
    servers = ControlServers(tmp_path)
    await servers.start(SmallControl())
    yield servers
    await servers.stop()


async def open_internal(servers: ControlServers) -> HttpConnection:
    return HttpConnection(*await asyncio.open_unix_connection(servers.http_path))


async def test_large_body_does_not_block_other_requests(
    servers: ControlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(UNKNOWN) > 256 * 1024
    stopped = Stopped(monkeypatch, endpoint)
    large = await open_internal(servers)
    large.say("POST", VALIDATE, UNKNOWN, CLOUD)
    try:
        await until_met(lambda: bool(stopped.threads))
        small = await open_internal(servers)
        assert (await small.ask("GET", BILLING, None, CLOUD)).status == 200
        await small.close()
    finally:
        stopped.go_on.set()
    refusal = await large.read()
    assert (refusal.status, code_of(refusal)) == (400, "BODY_INVALID")
    errors = refusal.json["errors"]
    assert errors[0]["path"] == ["0", "unknown-field"]
    assert errors[-1]["message"] == f"and {60_000 - len(errors) + 1} more problems"
    assert stopped.threads == ["large request_0"]
    await large.close()


async def test_large_grpc_message_does_not_block_other_requests(
    servers: ControlServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Stopped(monkeypatch, grpc_server)
    async with grpc.aio.insecure_channel(f"unix:{servers.grpc_path}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(f"/{GAMES}/ValidateGame")
        metadata = (("authorization", CLOUD["authorization"]),)
        data = games_pb2.ValidateGameRequest(display_name=LONG).SerializeToString()
        large = asyncio.ensure_future(call(data, metadata=metadata, timeout=30))
        try:
            await until_met(lambda: bool(stopped.threads))
            small = await open_internal(servers)
            assert (await small.ask("GET", BILLING, None, CLOUD)).status == 200
            await small.close()
        finally:
            stopped.go_on.set()
        answer = games_pb2.ValidateGameResponse.FromString(await large)
        assert answer.errors[0].path == [str(len(LONG))]
        assert stopped.threads == ["large request_0"]
