"""Whole service as an ordinary user. The game servers have the same user, and only Landlock
isolates them.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.app.hostile_server import goals_of, reaches_nothing, runtime_status
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, running
from tests.support.older_machine import NOT_SCOPED, OlderMachine
from tests.support.server_back_end import ServerBackEnd, reached
from tests.support.unprivileged_python import interpreter
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]


SCRATCH: Final = "scratch folders have no size limit"
"""Landlock has no mount namespace, so a run has no file system of its own."""

UNLIMITED: Final = {
    "memory is watched twice a second, not limited",
    "processors are shared by nice values",
    "processes are limited for each user only",
    "disk I/O is not shared by weight",
    "the network of game servers is not isolated",
}
"""Limits that the service reports as not enforced when it may not create control groups."""
SIGNALS: Final = "game servers can signal all processes of this user, the service's too"


@contextlib.contextmanager
def serving(isolation: str, *, landlock: int | None = None) -> Iterator[FullService]:
    """Starts a service. `landlock` simulates a machine without user namespaces and with this
    version of Landlock.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keeper = None
        if landlock is not None:
            machine = OlderMachine(folder)
            keeper = machine.keeper(landlock)
        service = FullService(folder, runtime={**game_programs.SETTINGS, "isolation": isolation})
        service.interpreter = interpreter(folder, keeper)
        with running(service):
            yield service


@pytest.fixture
def full_service() -> Iterator[FullService]:
    with serving("landlock") as service:
        yield service


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[ServerBackEnd]:
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
