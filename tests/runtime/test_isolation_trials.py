from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.isolation_trials import (
    choose_isolation,
    landlock_version,
    open_abstract_sockets,
    unenforced_by_isolation,
)
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from tests.support.older_machine import NOT_SCOPED, OlderMachine

pytestmark = [pytest.mark.anyio, pytest.mark.full]
OPEN: Final = [
    "game servers can connect to abstract Unix sockets of the machine: "
    "Linux 6.12 or later prevents it"
]


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


@pytest.mark.parametrize(
    ("version", "isolation", "has_containers", "problems"),
    [
        (0, "user", False, OPEN),
        (5, "namespace", False, OPEN),
        (5, "landlock", True, OPEN),
        (5, None, True, OPEN),
        (6, "user", True, []),
        # Landlock game servers have no Unix sockets, and `none` isolates nothing.
        (5, "landlock", False, []),
        (5, "none", False, []),
    ],
)
def test_open_abstract_sockets_are_reported(
    version: int, isolation: Any, has_containers: bool, problems: list[str]
) -> None:
    assert open_abstract_sockets(isolation, has_containers, version) == problems


def test_landlock_version_is_that_of_the_kernel() -> None:
    release = tuple(int(one) for one in os.uname().release.split(".")[:2])
    version = landlock_version()
    assert version >= 0
    if version:
        assert (version >= 6) == (release >= (6, 12))
