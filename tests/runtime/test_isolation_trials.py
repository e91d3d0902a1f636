from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.app.game_runtime import SYSTEM_PATHS
from pyservice.runtime.isolation_trials import choose_isolation, unenforced_by_isolation
from tests.support.older_machine import NOT_SCOPED, OlderMachine

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture(scope="module")
def machine() -> Iterator[OlderMachine]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        machine = OlderMachine(Path(name))
        if machine.chosen("landlock", machine.keeper())[0] is None:
            pytest.skip("this kernel has no Landlock")
        yield machine


def test_landlock_is_chosen_without_user_namespaces(machine: OlderMachine) -> None:
    chosen, kept_off_not = machine.chosen("auto", machine.keeper())
    if chosen is None:
        pytest.skip("this kernel is older than 6.12")
    assert (chosen, kept_off_not) == ("landlock", [])


def test_landlock_without_signal_rules_is_only_chosen_explicitly(machine: OlderMachine) -> None:
    keeper = machine.keeper(NOT_SCOPED)
    assert machine.chosen("auto", keeper) == [None, []]
    chosen, kept_off_not = machine.chosen("landlock", keeper)
    assert chosen == "landlock"
    assert len(kept_off_not) == 1
    assert "can signal all processes of this user" in kept_off_not[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="every game server is another user where we are root")
async def test_game_servers_under_root_cannot_signal_on_old_landlock(machine: OlderMachine) -> None:
    keeper, trials = machine.keeper(NOT_SCOPED), machine.folder / "trials-of-root"
    assert await choose_isolation("landlock", keeper, trials, SYSTEM_PATHS) == "landlock"
    assert await unenforced_by_isolation("landlock", keeper, trials, SYSTEM_PATHS) == []
