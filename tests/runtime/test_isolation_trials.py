from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.app.game_runtime import SYSTEM_PATHS
from pyservice.runtime.isolation_trials import choose_isolation, unenforced_by_isolation
from tests.support.compiled_programs import compiled_program

pytestmark = [pytest.mark.anyio, pytest.mark.full]

CHOOSES: Final = """
import asyncio, concurrent.futures.thread, json, os, sys
from pathlib import Path
from pyservice.app.game_runtime import SYSTEM_PATHS
from pyservice.runtime.isolation_trials import choose_isolation, unenforced_by_isolation
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
keeper, folder = Path(sys.argv[2]), Path(sys.argv[3])
chosen = asyncio.run(choose_isolation(sys.argv[1], keeper, folder, SYSTEM_PATHS))
print(json.dumps([chosen, asyncio.run(unenforced_by_isolation(chosen, keeper, folder, SYSTEM_PATHS))]))
"""
"""Runs as an ordinary user. The Python installation may be in a folder that only root can read."""
NOT_SCOPED: Final = 5
"""The last version of Landlock without a rule for signals."""


class OlderMachine:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The released keeper is linked statically and ignores the preloaded library. Copies,
        # because another user may not read the checkout.
        shutil.copy(compiled_program("older_machine.so"), folder)
        shutil.copy(compiled_program("hosting-keeper"), folder / "keeper")

    def keeper(self, landlock: int | None = None) -> Path:
        path = self.folder / f"keeper-{landlock}"
        version = "" if landlock is None else f"OLDER_LANDLOCK={landlock}"
        preload = f"LD_PRELOAD={self.folder}/older_machine.so"
        path.write_text(f'#!/bin/sh\n{preload} {version} exec {self.folder}/keeper "$@"\n')
        path.chmod(0o755)
        return path

    def chosen(self, isolation: str, keeper: Path) -> Any:
        command = [
            sys.executable,
            "-c",
            CHOOSES,
            isolation,
            str(keeper),
            str(self.folder / "trials"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])


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
