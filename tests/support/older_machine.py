"""A machine with an older Landlock, simulated by a preloaded library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.compiled_programs import compiled_program

CHOOSES: Final = """
import asyncio, concurrent.futures.thread, json, os, sys
from pathlib import Path
from pyservice.runtime.node_preparation import SYSTEM_PATHS
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
