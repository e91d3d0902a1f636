"""Interpreters of the machine under the isolations with a root of their own, as programs of game servers use them."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import choose_isolation
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.node_preparation import system_paths
from pyservice.runtime.run_requests import Resources
from tests.support.interpreter_programs import (
    MEMORY_MB,
    NODE_GAME,
    PYTHON_GAME,
    PYTHON_LINES,
    check_java_lines,
    check_node_lines,
    java_class,
    needs_java,
    needs_node,
)
from tests.support.runtime_host import RuntimeHost
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio

BUILD: Final = "0192f000-0000-7000-8000-000000000d00"
_numbers: Final = itertools.count()
PYTHON: Final = "/usr/bin/python3"
SETTINGS: Final = (
    *("/etc/localtime", "/etc/timezone", "/etc/ssl/certs", "/etc/services", "/etc/protocols"),
    *("/etc/fonts", "/etc/mono"),
)
"""Settings of the machine that its programs need."""
CHECKSUMS: Final = """
export LC_ALL=C
for path; do echo "$path" $(find -L "$path" -type f -exec cksum {} + | sort | cksum); done
"""
needs_python: Final = pytest.mark.skipif(
    not Path(PYTHON).exists(), reason="no Python in /usr: apt-get install python3"
)


class Programs:
    def __init__(self, host: RuntimeHost) -> None:
        self._host = host
        self.has_memory_limit = host.node.groups.memory is not None

    async def output(self, *command: str, files: Mapping[str, bytes] | None = None) -> list[str]:
        """Runs a command that must succeed, and returns the lines of its standard output."""
        build_id = f"{BUILD[:-2]}{next(_numbers):02}"
        manifest = json.dumps({"command": command}).encode()
        self._host.store.archives[build_id] = tar({"server.json": manifest, **(files or {})})
        resources = Resources(1_000, MEMORY_MB)
        order = self._host.want(build_id=build_id, args=(), resources=resources)
        end = await self._host.reports.end(order.id)
        lines = [(line.stream, line.text) for line in self._host.of(order).lines()]
        assert (end.reason, end.exit_code) == ("exited", 0), lines
        return [text for stream, text in lines if stream == "std_out"]


@pytest.fixture(params=["user", "namespace"])
async def programs(host: RuntimeHost, tmp_path: Path, request: pytest.FixtureRequest) -> Programs:
    tmp_path.parent.chmod(0o755)
    folder, paths = host.folder / "servers", system_paths()
    isolation = await choose_isolation(request.param, KEEPER_BINARY, folder, paths)
    if isolation is None:
        pytest.skip(f"no isolation by {request.param}: this user or kernel has no rights for it")
    groups = ControlGroups.find(host.folder)
    host.node = replace(host.node, isolation=isolation, shared_paths=paths, groups=groups)
    await host.anew()
    return Programs(host)


@needs_python
async def test_python_has_shared_memory_processes_and_a_user(programs: Programs) -> None:
    lines = await programs.output(PYTHON, "game.py", files={"game.py": PYTHON_GAME.encode()})
    assert lines == PYTHON_LINES


async def test_programs_find_the_settings_of_the_machine(programs: Programs) -> None:
    settings = [path for path in SETTINGS if Path(path).exists()]
    assert len(settings) > 1
    command = ("sh", "-c", CHECKSUMS, "sh", *settings)
    machine = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert await programs.output(*command) == machine.splitlines()


@needs_node
async def test_node_has_a_user_and_sees_its_memory_limit(programs: Programs) -> None:
    lines = await programs.output("node", "-e", NODE_GAME)
    check_node_lines(lines, has_memory_limit=programs.has_memory_limit)


@needs_java
async def test_java_of_the_system_sees_its_memory_limit(programs: Programs, tmp_path: Path) -> None:
    files = {"Game.class": java_class(tmp_path)}
    lines = await programs.output("java", "Game", files=files)
    check_java_lines(lines, has_memory_limit=programs.has_memory_limit)


async def test_control_groups_show_only_the_own_run_and_are_read_only(programs: Programs) -> None:
    if not programs.has_memory_limit:
        pytest.skip("this machine has no control group of memory")
    script = (
        "find /sys -name 'hosting-*'; cut -d: -f3 /proc/self/cgroup | grep hosting-; "
        "find /sys -writable -type f; for f in $(find /sys -name cgroup.procs); do "
        "echo 0 > $f && echo wrote $f; done 2>/dev/null; echo over"
    )
    assert await programs.output("sh", "-c", script) == ["over"]
