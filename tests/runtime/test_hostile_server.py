"""One game server tries each forbidden thing. Each attempt gets its documented error, and the game
server of another game keeps its tick time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.containers import PROCESSES_MAX
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.isolation_trials import (
    choose_isolation,
    choose_scratch,
    network_isolation_problem,
)
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.network_isolation import OWN_PORT_SOCKETS_MAX, NetworkPolicy
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.run_folder import LogLine
from pyservice.runtime.run_requests import PortRequest, Resources, RunRequest
from pyservice.settings.sections import RuntimeSettings
from tests.support.runtime_host import RuntimeHost
from tests.support.socket_queues import exchanged_datagrams, growth, queue_bytes
from tests.support.upload_files import tar
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timing, pytest.mark.timeout(180)]

PROGRAMS: Final = Path(__file__).parent.parent / "programs"
BUILDS: Final = {
    "ticking": "0192f000-0000-7000-8000-00000000b0e1",
    "forbidden": "0192f000-0000-7000-8000-00000000b0e2",
}
SECONDS: Final = 5
ADDED_MS_MAX: Final = 2.0
MIB: Final = 1 << 20
DATAGRAM_BYTES_MAX: Final = 224 * MIB
"""Queues of all UDP sockets of a run."""
DROPPED: Final = re.compile(r"\[(\d+) lines with \d+ bytes dropped: the log has a rate limit\]")


@pytest.fixture
async def shared_host(host: RuntimeHost) -> RuntimeHost:
    """Isolates the runs as a service does with its default settings."""
    host.folder.chmod(0o755)
    groups = ControlGroups.find(host.folder)
    if None in (groups.memory, groups.cpu, groups.processes):
        pytest.skip("this machine has no control group for some of the limits")
    problem = await network_isolation_problem(groups, KEEPER_BINARY, host.folder)
    if problem is not None:
        pytest.skip(f"this kernel cannot isolate the network: {problem}")
    paths = (*SYSTEM_PATHS, Path(sys.base_prefix))
    isolation = await choose_isolation("auto", KEEPER_BINARY, host.folder, paths)
    settings = RuntimeSettings()
    servers = host.folder / "servers"
    scratch, problem = await choose_scratch(
        isolation, KEEPER_BINARY, servers, paths, settings.scratch_bytes_max
    )
    assert scratch.kind != "folder", problem
    host.node = dataclasses.replace(
        host.node,
        isolation=isolation,
        shared_paths=paths,
        groups=groups,
        network=NetworkPolicy("internet"),
        scratch=scratch,
        log_lines_per_s=settings.log_lines_per_second,
        log_bytes_per_s=settings.log_bytes_per_second,
    )
    await host.anew()
    return host


def start(host: RuntimeHost, program: str, memory_mb: int, goals: Any = None) -> RunRequest:
    name = f"{program}.py"
    command = (os.path.realpath(sys.executable), "-S", name)
    manifest = json.dumps({"command": command}).encode()
    names = (name, "socket_queues.py")
    content = {one: (PROGRAMS / one).read_bytes() for one in names}
    host.store.archives[BUILDS[program]] = tar({"server.json": manifest, **content})
    return host.want(
        "",
        game_id=program,
        build_id=BUILDS[program],
        resources=Resources(125, memory_mb),
        args=(),
        env={"GOALS": json.dumps(goals)},
        ports={"game": PortRequest("tcp_udp")},
    )


class Log:
    """The log of a run, which is read once."""

    def __init__(self, host: RuntimeHost, order: RunRequest) -> None:
        self._folder = host.of(order)
        self._position = 0
        self.lines: list[LogLine] = []

    def read(self) -> list[LogLine]:
        for line in self._folder.lines(self._position):
            self._position = line.position
            self.lines.append(line)
        return self.lines


async def tick_times(log: Log) -> list[float]:
    """Returns the tick times in milliseconds of the next seconds."""
    begin = len(log.read())

    async def has_ticked() -> bool:
        return len(log.read()) > begin + SECONDS

    await eventually(has_ticked)
    return milliseconds(log.lines[begin + 1 :])


def milliseconds(lines: list[LogLine]) -> list[float]:
    return [time_us / 1000 for line in lines for time_us in json.loads(line.text)]


async def test_each_attempt_gets_its_error_and_a_bystander_keeps_its_tick_time(
    shared_host: RuntimeHost,
) -> None:
    host = shared_host
    bystander = start(host, "ticking", 64)
    foreign_port = (await host.reports.wait_for(bystander.id, "placed"))["game"][1]
    ticks = Log(host, bystander)
    before = await tick_times(ticks)
    with socket.create_server(("127.0.0.1", 0)) as service:
        addresses = {
            "service": service.getsockname(),
            "metadata": ("169.254.169.254", 80),
            "server": ("127.0.0.1", foreign_port),
        }
        goals = {"addresses": addresses, "foreign_port": foreign_port, "streams": [100, 400]}
        queues = queue_bytes()
        begin = len(ticks.read())
        hostile = start(host, "forbidden", 2_048, goals)
        output = Log(host, hostile)

        async def dropped_lines() -> int:
            texts = [line.text for line in output.read() if line.stream == "std_err"]
            assert len([one for one in texts if not DROPPED.fullmatch(one)]) == 0, texts
            count = sum(int(found[1]) for one in texts if (found := DROPPED.fullmatch(one)))
            return count if count > 1_000_000 else 0

        await eventually(dropped_lines, timeout_s=90)
        await tick_times(ticks)
        grown = growth(queues)
        assert grown["UDP"] <= DATAGRAM_BYTES_MAX
        assert sum(grown.values()) <= 2_048 * MIB + 500 * (32 << 10)
        assert exchanged_datagrams(100) == 100
    during = milliseconds(ticks.lines[begin + 1 :])
    found: dict[str, set[Any]] = defaultdict(set)
    for line in output.lines:
        if line.text.startswith("[") and line.stream == "std_out":
            what, result = json.loads(line.text)
            found[what].add(result)
    check_errors(found)
    for order in (hostile, bystander):
        host.supervisor.end(order.id, 0)
        assert (await host.reports.end(order.id)).reason == "stopped"
    assert statistics.median(during) - statistics.median(before) <= ADDED_MS_MAX


def check_errors(found: dict[str, set[Any]]) -> None:
    """The errors of `docs/isolation.md` and `docs/reference/limits.md`."""
    for name in ("service", "metadata", "server", "bind"):
        for kind in ("SOCK_STREAM", "SOCK_DGRAM"):
            assert found.pop(f"{name} {kind}") == {"EPERM"}, (name, kind)
    assert found.pop("user namespace") == {"EPERM"}
    assert found.pop("io_uring") == {"EPERM"}
    assert found.pop("scratch") == {"ENOSPC"}
    [size] = found.pop("scratch size")
    assert 900 * MIB < size <= 1024 * MIB
    # Two of the sockets on the own port are listening sockets.
    assert found.pop("sockets") == {OWN_PORT_SOCKETS_MAX - 2}
    assert found.pop("connections") == {500}
    [made] = found.pop("processes")
    assert PROCESSES_MAX - 8 <= made < PROCESSES_MAX
    assert found.pop("fork") == {"EAGAIN"}
    assert not found
