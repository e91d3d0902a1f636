"""Commands that exceed one response and are requested separately (docs/game-servers.md)."""

from __future__ import annotations

import pytest

from pyservice.dataplane import runtime_connection
from pyservice.dataplane.resolved_namespace import raw_id
from tests.control.test_lobby_runs import LobbyRunScenario, run_scenario

__all__ = ["run_scenario"]

pytestmark = pytest.mark.anyio


async def test_too_large_command_is_requested_separately(
    run_scenario: LobbyRunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_connection, "SPECS_BYTES_MAX", 1)
    lobbies = [await run_scenario.lobby() for _ in range(4)]
    run_scenario.data.run = ""
    complete = await run_scenario.data.wanted()
    assert complete.is_complete
    assert [one.is_later for one in complete.lobbies] == [False, True, True, True]
    assert [one.HasField("spec") for one in complete.lobbies] == [True, False, False, False]
    async with run_scenario.following() as runs:
        for lobby in lobbies:
            await run_scenario.node.reports.wait_for(lobby, "running")
        later = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(later, "running")
        assert runs.job.unexpected_errors == 0
    assert all(run_scenario.is_live(lobby) for lobby in [*lobbies, later])


async def test_ended_lobby_is_not_requested_again(
    run_scenario: LobbyRunScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_connection, "SPECS_BYTES_MAX", 1)
    first, ended = [await run_scenario.lobby() for _ in range(2)]
    answer = await run_scenario.data.wanted()
    assert [one.is_later for one in answer.lobbies] == [False, True]
    await run_scenario.data.engine.processes.exited(raw_id(ended), None)
    async with run_scenario.following() as runs:
        await run_scenario.node.reports.wait_for(first, "running")
        last = await run_scenario.lobby()
        await run_scenario.node.reports.wait_for(last, "running")
        assert not runs._left
    assert not run_scenario.node.supervisor.is_known(ended)
