"""Calls to a control plane that is stopped or killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.full_service import Developer, FullService

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timing]

ANSWERED_S: Final = 0.1
CALLS: Final = 20


@pytest.fixture
def full_service(tmp_path: Path) -> Iterator[FullService]:
    full_service = FullService(tmp_path / "s")
    try:
        full_service.start()
        yield full_service
    finally:
        full_service.close()


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_calls_to_a_stopped_control_plane_fail_at_once(
    full_service: FullService, transport: str
) -> None:
    async with full_service.open_client(transport) as client:
        developer = Developer(full_service, client)
        await developer.good("get_games")
        pid = full_service.control_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            times = []
            for _ in range(CALLS):
                began = time.perf_counter()
                answer = await client.call("get_games", {}, token=full_service.cloud_token)
                times.append(time.perf_counter() - began)
                assert answer.code == "CONTROL_PLANE_UNAVAILABLE"
        finally:
            os.kill(pid, signal.SIGCONT)
        assert max(times) < ANSWERED_S, times
        await developer.good("get_games")


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_calls_to_a_killed_control_plane_fail_at_once_until_it_is_back(
    full_service: FullService, transport: str
) -> None:
    async with full_service.open_client(transport) as client:
        await Developer(full_service, client).good("get_games")
        pid = full_service.control_pid()
        os.kill(pid, signal.SIGKILL)
        refused, code = [], ""
        while code != "OK":
            began = time.perf_counter()
            code = (await client.call("get_games", {}, token=full_service.cloud_token)).code
            if code != "OK":
                refused.append(time.perf_counter() - began)
                assert code == "CONTROL_PLANE_UNAVAILABLE"
    assert refused
    assert max(refused) < ANSWERED_S, max(refused)
    assert full_service.control_pid() != pid
