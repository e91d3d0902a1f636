"""Trial of connections, as in the probe Pod, with real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.kubernetes.connection_trial import ConnectionTrial, TrialReport
from pyservice.node import try_connections as program
from pyservice.node.try_connections import try_connections
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0


class Target:
    """An address that a policy can open and close. It counts its connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.address = ""
        self._server: asyncio.Server | None = None

    async def open(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    async def reopen(self) -> None:
        await self.open(int(self.address.rpartition(":")[2]))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _accept(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.fixture
async def allowed() -> AsyncIterator[Target]:
    target = Target()
    await target.open()
    yield target
    target.close()


@pytest.fixture
async def refused() -> AsyncIterator[Target]:
    target = Target()
    await target.open()
    yield target
    target.close()


async def test_closed_address_is_proven_in_a_few_rounds(allowed: Target, refused: Target) -> None:
    refused.close()
    trial = ConnectionTrial(allowed.address, (refused.address,), TIMEOUT_S)
    assert await try_connections(trial) == TrialReport(reaches_allowed=True)
    assert allowed.connections == program.ROUNDS


async def test_address_that_stays_open_is_reported(allowed: Target, refused: Target) -> None:
    found = await try_connections(ConnectionTrial(allowed.address, (refused.address,), 0.5))
    assert (found.reaches_allowed, found.reached) == (True, (refused.address,))


async def test_policies_that_come_late_are_waited_for(allowed: Target, refused: Target) -> None:
    trial = ConnectionTrial(allowed.address, (refused.address,), TIMEOUT_S)
    trying = asyncio.create_task(try_connections(trial))
    await until_met(lambda: refused.connections)
    refused.close()
    found = await trying
    assert (found.reaches_allowed, found.reached) == (True, ())
    assert found.open_ms > 0


@pytest.mark.full
async def test_network_that_comes_late_is_waited_for(allowed: Target, refused: Target) -> None:
    allowed.close()
    refused.close()
    trial = ConnectionTrial(allowed.address, (refused.address,), TIMEOUT_S)
    trying = asyncio.create_task(try_connections(trial))
    # Longer than the rounds that would prove the policies.
    _, pending = await asyncio.wait({trying}, timeout=3.0)
    assert pending, "without a network, silence proves nothing"
    await allowed.reopen()
    assert await trying == TrialReport(reaches_allowed=True)


async def test_missing_network_is_reported(allowed: Target, refused: Target) -> None:
    allowed.close()
    refused.close()
    found = await try_connections(ConnectionTrial(allowed.address, (refused.address,), 0.5))
    assert found == TrialReport(reaches_allowed=False)


def test_report_is_in_the_last_words(tmp_path: Path) -> None:
    path = tmp_path / "termination-log"
    trial = ConnectionTrial("127.0.0.1:1", ("[::1]:1",), 0.0)
    assert program.main([trial.encode()], path) == 0
    assert TrialReport.decode(path.read_text()) == TrialReport(reaches_allowed=False)
    assert json.loads(path.read_text())["reached"] == []
