"""Whole service as an ordinary user. The game servers have the same user, and only Landlock
isolates them.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.shared_network import NODE_IS_SHARED
from tests.app.hostile_server import goals_of, reaches_nothing, runtime_status
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, running
from tests.support.older_machine import NOT_SCOPED, OlderMachine
from tests.support.server_back_end import ServerBackEnd, answer_together, open_two_groups, reached
from tests.support.unified_groups import unified_groups
from tests.support.unprivileged_python import interpreter
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]


SCRATCH: Final = "scratch folders have no size limit"
"""Landlock has no mount namespace, so a run has no file system of its own."""
NETWORK: Final = "the network of game servers is not isolated"
UNLIMITED: Final = {
    "memory is watched twice a second, not limited",
    "processors are shared by nice values",
    "processes are limited for each user only",
    "disk I/O is not shared by weight",
    NETWORK,
}
"""Limits that the service reports as not enforced when it may not create control groups."""
SIGNALS: Final = "game servers can signal all processes of this user, the service's too"


@contextlib.contextmanager
def serving(
    isolation: str, *, landlock: int | None = None, group: Path | None = None, **runtime: Any
) -> Iterator[FullService]:
    """Starts a service. `landlock` simulates a machine without user namespaces and with this
    version of Landlock. `group` is the control group of version 2 in which the service starts.
    `runtime` has more settings of this section.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keeper = None
        if landlock is not None:
            machine = OlderMachine(folder)
            keeper = machine.keeper(landlock)
        settings = {**game_programs.SETTINGS, "isolation": isolation, **runtime}
        service = FullService(folder, runtime=settings)
        join = ["sh", "-ec", 'echo 0 >"$0/cgroup.procs"; exec "$@"', str(group)] if group else []
        service.interpreter = [*join, *interpreter(folder, keeper)]
        with running(service):
            yield service


@pytest.fixture
def full_service() -> Iterator[FullService]:
    with serving("landlock") as service:
        yield service


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[ServerBackEnd]:
    async with back_end_of(full_service) as servers:
        yield servers


@contextlib.asynccontextmanager
async def back_end_of(full_service: FullService) -> AsyncIterator[ServerBackEnd]:
    client = full_service.client("http")
    developer = Developer(full_service, client)
    game_id = await developer.game()
    servers = ServerBackEnd(developer, game_id, await developer.service_token(game_id))
    await servers.prepare_build()
    yield servers
    await client.close()


async def test_game_server_of_the_same_user_reaches_no_service_files(
    full_service: FullService, back_end: ServerBackEnd
) -> None:
    runs, unenforced = await runtime_status(full_service)
    if "landlock" not in runs:
        pytest.skip("this kernel has no Landlock")
    other = await back_end.running()
    await eventually(lambda: reached(other))
    goals = goals_of(full_service, is_scoped=SIGNALS not in unenforced)
    for path in goals["sockets"]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
    await reaches_nothing(back_end, goals, "python3")
    assert await reached(other), "the other server still runs"


async def test_unenforced_limits_are_reported(full_service: FullService) -> None:
    runs, unenforced = await runtime_status(full_service)
    if "landlock" not in runs:
        pytest.skip("this kernel has no Landlock")
    assert runs == "runs archive, isolation landlock"
    assert unenforced - {SIGNALS} == {*UNLIMITED, SCRATCH}
    [start] = [line for line in full_service.log().splitlines() if "runtime ready" in line]
    assert all(problem in start for problem in unenforced)


async def test_allowed_signals_are_reported_for_explicit_landlock() -> None:
    with serving("landlock", landlock=NOT_SCOPED) as full_service:
        runs, unenforced = await runtime_status(full_service)
    if "landlock" not in runs:
        pytest.skip("this kernel has no Landlock")
    assert unenforced == {*UNLIMITED, SCRATCH, SIGNALS}


async def test_no_game_server_runs_without_isolation() -> None:
    with serving("auto", landlock=NOT_SCOPED) as full_service:
        runs, unenforced = await runtime_status(full_service)
    assert runs.startswith("runs nothing")
    assert unenforced == {*UNLIMITED, "archive is not run"}


async def test_groups_do_not_share_a_node_without_network_isolation() -> None:
    with serving("none") as full_service:
        assert NETWORK in (await runtime_status(full_service))[1]
        async with open_two_groups(full_service) as (first, second):
            server = await first.running()
            await eventually(lambda: reached(server))
            refused = await second.create()
            ended_server = await second.until(refused["id"], "running", "failed", "destroyed")
            assert ended_server["status"] == "failed"
            assert ended_server["failure"]["reason"] == "EXEC_FAILED"
            assert ended_server["failure"]["message"] == NODE_IS_SHARED
            assert await reached(server), "the server of the first group still runs"


async def test_groups_share_a_node_without_network_isolation_if_allowed() -> None:
    with serving("none", allow_shared_network=True) as full_service:
        assert NETWORK in (await runtime_status(full_service))[1]
        async with open_two_groups(full_service) as back_ends:
            await answer_together(back_ends)


async def test_game_servers_in_a_delegated_slice_survive_a_restart() -> None:
    with unified_groups() as groups:
        groups.make("hosting.slice", "hosting.slice/hosting.service")
        groups.give("hosting.slice")
        own = groups.path("hosting.slice/hosting.service")
        with serving("landlock", group=own) as full_service:
            runs, _ = await runtime_status(full_service)
            if "landlock" not in runs:
                pytest.skip("this kernel has no Landlock")
            async with back_end_of(full_service) as back_end:
                server = await back_end.running()
                [group] = groups.path("hosting.slice").glob(f"hosting-*/{server['id']}")
                members = groups.processes(str(group))
                assert members
                full_service.stop()
                full_service.start()
                assert groups.processes(str(group)) == members
                assert await reached(server)
                other = await back_end.running()
                assert (group.parent / other["id"]).is_dir()
                for one in (server, other):
                    await back_end.good("destroy_server", server_id=one["id"])
                    await back_end.until(one["id"], "destroyed")
                await eventually_gone(group.parent)


async def eventually_gone(group: Path) -> None:
    async def is_gone() -> bool:
        return not group.exists()

    await eventually(is_gone)
