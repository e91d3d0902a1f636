"""Whole service as an ordinary user. The game servers have the same user, and only Landlock
isolates them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests import programs
from tests.control.test_servers import Servers, reached
from tests.runtime.test_isolation_trials import NOT_SCOPED, OlderMachine
from tests.support.full_service import Developer, FullService, running
from tests.support.leftover_processes import pids_of
from tests.support.unprivileged_python import interpreter
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]

SOCKETS: Final = {"admin.sock", "control/grpc.sock", "control/http.sock", "edge/admin.sock"}
FILES: Final = {
    "keys.json",
    "control/keys.json",
    "control/owner.token",
    "control/records.db",
    "edge/routes",
    "servers/notices",
}


UNLIMITED: Final = {
    "memory is watched twice a second, not limited",
    "processors are shared by nice values",
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
        service = FullService(folder, runtime={**programs.SETTINGS, "isolation": isolation})
        service.interpreter = interpreter(folder, keeper)
        with running(service):
            yield service


@pytest.fixture
def full_service() -> Iterator[FullService]:
    with serving("landlock") as service:
        yield service


async def runtime_status(full_service: FullService) -> tuple[str, set[str]]:
    """Returns the runtime line of `/readyz?verbose` without the reasons: the isolation and the
    limits that are not enforced.
    """

    async def looked() -> str | None:
        status = httpx.get(f"http://{full_service.ready['metrics']}/readyz?verbose").text
        [line] = [line for line in status.splitlines() if line.startswith("runtime: ")]
        # The service detects the isolation shortly after its servers are open.
        return line.removeprefix("runtime: ") if "isolation" in line else None

    runs, _, unenforced = (await eventually(looked)).partition("; unenforced: ")
    return runs, {one.partition(":")[0] for one in unenforced.split("; ") if one}


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[Servers]:
    client = full_service.client("http")
    developer = Developer(full_service, client)
    game_id = await developer.game()
    servers = Servers(developer, game_id, await developer.service_token(game_id))
    await servers.prepare_build()
    yield servers
    await client.close()


async def test_game_server_of_the_same_user_reaches_no_service_files(
    full_service: FullService, back_end: Servers
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


async def reaches_nothing(back_end: Servers, goals: Any, python: str) -> None:
    """Returns whether the hostile game server reports that every attempt failed."""
    archive = programs.server_archive(
        *(python, "-S", "hostile.py"),
        **{
            "hostile.py": (programs.FOLDER / "hostile.py").read_bytes(),
            "goals.json": json.dumps(goals).encode(),
        },
    )
    server = await back_end.create(runtime={"build": await back_end.build(archive)})
    record = await back_end.until(server["id"], "destroyed", "failed")
    lines = [
        (await back_end.lines(server["id"], stream))["lines"] for stream in ("std_out", "std_err")
    ]
    assert lines == [["lives", "over"], []], record


def goals_of(full_service: FullService, *, is_scoped: bool) -> Any:
    root = full_service.data_dir.resolve()
    everything = [path for path in root.rglob("*") if not path.is_symlink()]
    goals: Any = {
        "sockets": [str(path) for path in everything if path.is_socket()],
        "files": [str(path) for path in everything if path.is_file() or path.is_fifo()],
        "folders": [str(root), *(str(path) for path in everything if path.is_dir())],
        "pids": [
            full_service.process.pid if full_service.process else 0,
            *pids_of(root),
            *planes(root),
        ],
        "is_scoped": is_scoped,
    }
    for names, kind in ((SOCKETS, "sockets"), (FILES, "files")):
        paths = {str(Path(path).relative_to(root)) for path in goals[kind]}
        assert names <= paths, paths
    assert all(os.path.exists(f"/proc/{pid}") for pid in goals["pids"])
    return goals


def planes(root: Path) -> list[int]:
    return [int((root / name).read_text().split()[0]) for name in ("LOCK", "control/LOCK")]


async def test_unenforced_limits_are_reported(full_service: FullService) -> None:
    runs, unenforced = await runtime_status(full_service)
    if "landlock" not in runs:
        pytest.skip("this kernel has no Landlock")
    assert runs == "runs archive, isolation landlock"
    assert unenforced - {SIGNALS} == UNLIMITED


async def test_allowed_signals_are_reported_for_explicit_landlock() -> None:
    with serving("landlock", landlock=NOT_SCOPED) as full_service:
        runs, unenforced = await runtime_status(full_service)
    if "landlock" not in runs:
        pytest.skip("this kernel has no Landlock")
    assert unenforced == {*UNLIMITED, SIGNALS}


async def test_no_game_server_runs_without_isolation() -> None:
    with serving("auto", landlock=NOT_SCOPED) as full_service:
        runs, unenforced = await runtime_status(full_service)
    assert runs.startswith("runs nothing")
    assert unenforced == {*UNLIMITED, "archive is not run"}
