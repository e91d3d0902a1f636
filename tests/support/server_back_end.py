"""Back end of a game, which creates dynamic servers and calls them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from pyservice.runtime.run_folder import RunFolder
from tests.support import game_programs
from tests.support.full_service import (
    REPEATED_S,
    Developer,
    FullService,
    ServiceResponse,
    eventually,
)
from tests.support.game_back_end import GameBackEnd

TCP = {"game": {"protocol": "tcp"}}


class ServerBackEnd(GameBackEnd):
    server_ids: list[str]
    build_id: str

    async def prepare_build(self, *command: str) -> None:
        self.server_ids = []
        self.build_id = await self.build(game_programs.server_archive(*command))

    async def create(self, **fields: Any) -> Any:
        """Creates a server. Retries on 503, because a busy machine binds ports slowly."""
        key, deadline = uuid4().hex, time.monotonic() + REPEATED_S
        while (answer := await self.try_create(key, **fields)).code == "OVERLOADED":
            assert time.monotonic() < deadline, answer
        assert answer.code == "OK", answer
        self.server_ids.append(answer.body["server"]["id"])
        return answer.body["server"]

    async def try_create(self, key: str | None = None, **fields: Any) -> ServiceResponse:
        runtime = {"build": self.build_id, **fields.pop("runtime", {})}
        request_fields = {
            "datacenter": "local",
            "network": {"ports": TCP},
            "resources": {"cpu": 100, "memory": 128},
            "tags": {},
            **fields,
            "runtime": runtime,
        }
        return await self.call("create_server", key, **request_fields)

    async def get(self, server_id: str) -> Any:
        return (await self.good("get_server", server_id=server_id))["server"]

    async def until(self, server_id: str, *statuses: str) -> Any:
        async def matching_record() -> Any:
            record = await self.get(server_id)
            return record if record["status"] in statuses else None

        return await eventually(matching_record)

    async def running(self, **fields: Any) -> Any:
        created = await self.create(**fields)
        return await self.until(created["id"], "running")

    async def lines(self, server_id: str, stream: str = "std_out", **fields: Any) -> Any:
        return await self.good("get_server_logs", server_id=server_id, stream=stream, **fields)


async def echoed_by_server(record: Any, words: bytes = b"hello") -> bytes:
    port = record["network"]["ports"]["game"]

    def speak() -> bytes:
        address = (port["public_hostname"], port["public_port"])
        with socket.create_connection(address, 5) as connection:
            connection.sendall(words)
            return connection.recv(100)

    return await asyncio.to_thread(speak)


@contextlib.asynccontextmanager
async def open_back_end(
    full_service: FullService, transport: str, *command: str
) -> AsyncIterator[ServerBackEnd]:
    client = full_service.client(transport)
    try:
        developer = Developer(full_service, client)
        game_id = await developer.game()
        created = ServerBackEnd(developer, game_id, await developer.service_token(game_id))
        await created.prepare_build(*command)
        yield created
        for server_id in created.server_ids:
            await created.call("destroy_server", server_id=server_id, override_kill_timeout=0)
    finally:
        await client.close()


def without_usage(record: Any) -> Any:
    """Returns a record without `usage`, which changes and is not stored."""
    return {name: value for name, value in record.items() if name != "usage"}


async def reached(record: Any) -> bool:
    try:
        return await echoed_by_server(record) == b"hello"
    except OSError:
        return False


def on_host(number: int) -> Any:
    """Returns the network of a server with host networking and one port."""
    port = {"protocol": "tcp", "internal_port": number, "routing": {"host": {}}}
    return {"mode": "host", "ports": {"game": port}}


def free_host_port() -> int:
    """Returns a free port of the default host range. Other test workers search for one too."""
    with socket.socket() as tried:
        numbers = random.sample(range(20_000, 26_000), 100)
        return next(one for one in numbers if tried.connect_ex(("127.0.0.1", one)))


def process_of(full_service: FullService, server_id: str) -> int:
    state = RunFolder(full_service.data_dir / "servers" / server_id).state()
    assert state is not None
    return state.pid
