"""Commands that exceed one response and are requested separately (docs/game-servers.md)."""

from __future__ import annotations

import pytest

from pyservice.dataplane import runtime_connection
from pyservice.dataplane.resolved_namespace import raw_id
from tests.control.test_lobby_runs import Both, both

__all__ = ["both"]

pytestmark = pytest.mark.anyio


async def test_too_large_command_is_requested_separately(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_connection, "SPECS_BYTES_MAX", 1)
    lobbies = [await both.lobby() for _ in range(4)]
    both.data.run = ""
    complete = await both.data.wanted()
    assert complete.is_complete
    assert [one.is_later for one in complete.lobbies] == [False, True, True, True]
    assert [one.HasField("spec") for one in complete.lobbies] == [True, False, False, False]
    async with both.following() as runs:
        for lobby in lobbies:
            await both.node.ear.told(lobby, "running")
        later = await both.lobby()
        await both.node.ear.told(later, "running")
        assert runs.job.unexpected_errors == 0
    assert all(both.is_live(lobby) for lobby in [*lobbies, later])


async def test_ended_lobby_is_not_requested_again(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_connection, "SPECS_BYTES_MAX", 1)
    first, ended = [await both.lobby() for _ in range(2)]
    answer = await both.data.wanted()
    assert [one.is_later for one in answer.lobbies] == [False, True]
    await both.data.engine.processes.exited(raw_id(ended), None)
    async with both.following() as runs:
        await both.node.ear.told(first, "running")
        last = await both.lobby()
        await both.node.ear.told(last, "running")
        assert not runs._left
    assert not both.node.supervisor.is_known(ended)
