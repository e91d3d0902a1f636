"""Back end of a game, which creates dynamic servers and calls them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Iterable
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
    full_service: FullService, transport: str, *command: str, group_id: str | None = None
) -> AsyncIterator[ServerBackEnd]:
    """Opens the back end of a new game. `group_id` is its developer group, by default the owner's."""
    client = full_service.client(transport)
    try:
        developer = Developer(full_service, client)
        game_id = await developer.game(developer_group_id=group_id or full_service.group_id)
        created = ServerBackEnd(developer, game_id, await developer.service_token(game_id))
        await created.prepare_build(*command)
        yield created
        for server_id in created.server_ids:
            await created.call("destroy_server", server_id=server_id, override_kill_timeout=0)
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def open_two_groups(
    full_service: FullService, *command: str
) -> AsyncIterator[tuple[ServerBackEnd, ServerBackEnd]]:
    """Opens back ends of two developer groups. Each has a build of its own."""
    async with open_back_end(full_service, "http", *command) as first:
        group = await first.developer.good("create_group", display_name="Second")
        async with open_back_end(
            full_service, "http", *command, group_id=group["group_id"]
        ) as second:
            yield first, second


async def answer_together(back_ends: Iterable[ServerBackEnd]) -> None:
    """Starts a server for each back end, and waits until all servers answer at the same time."""
    servers = [await back_end.running() for back_end in back_ends]

    async def all_answer() -> bool:
        return all([await reached(server) for server in servers])

    await eventually(all_answer)


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
