"""Whole service as root with each isolation: a hostile game server cannot read keys or files of
other runs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.shared_network import NETWORK_NOT_ISOLATED
from tests.app.hostile_server import goals_of, reaches_nothing, runtime_status
from tests.support import game_programs
from tests.support.full_service import FullService, running
from tests.support.server_back_end import (
    ServerBackEnd,
    answer_together,
    open_back_end,
    open_two_groups,
    process_of,
    reached,
)
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.full,
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="every game server is another user as root alone"),
]

ISOLATIONS: Final = ("user", "namespace", "landlock")
PYTHONS: Final = (Path(sys.base_prefix, "bin/python3"), Path("/usr/bin/python3"))
USERS_FROM: Final = 2_000_000
KEYS: Final = ("/etc/shadow", *(str(path) for path in Path("/etc/ssl/private").glob("*")))


def python() -> str:
    for path in PYTHONS:
        with contextlib.suppress(OSError):
            interpreter = path.resolve(strict=True)
            if all(one.stat().st_mode & 0o001 for one in (interpreter, *interpreter.parents)):
                return str(path)
    pytest.skip("Python is in a directory that only root can read")


class PrivateService(FullService):
    interpreter = ("/bin/sh", "-c", 'umask 077; exec "$0" "$@"', sys.executable)


@contextlib.contextmanager
def serving(isolation: str, kind: type[FullService] = FullService) -> Iterator[FullService]:
    with tempfile.TemporaryDirectory() as name:
        # pytest creates its folder for root only. Access above the data directory is the
        # operator's task.
        os.chmod(name, 0o755)
        full_service = kind(Path(name), runtime={**game_programs.SETTINGS, "isolation": isolation})
        for folder in (
            full_service.data_dir,
            full_service.data_dir / "servers",
            full_service.data_dir / "builds",
        ):
            folder.mkdir(mode=0o700)
        with running(full_service):
            yield full_service


@pytest.fixture(params=ISOLATIONS)
def full_service(request: pytest.FixtureRequest) -> Iterator[FullService]:
    with serving(request.param) as service:
        yield service


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[ServerBackEnd]:
    async with open_back_end(full_service, "http", python(), "-S", "server.py") as servers:
        yield servers


async def test_game_server_runs_and_reads_no_foreign_files(
    full_service: FullService, back_end: ServerBackEnd
) -> None:
    isolation = full_service.settings["runtime"]["isolation"]
    runs, _ = await runtime_status(full_service)
    assert runs == f"runs archive, isolation {isolation}", full_service.log()
    other = await back_end.running()
    await eventually(lambda: reached(other))
    program = process_of(full_service, other["id"])
    assert os.stat(f"/proc/{program}/task/{program}").st_uid >= USERS_FROM or isolation != "user"
    await reaches_nothing(back_end, goals_of_root(full_service), python())
    assert await reached(other), "the other server still runs"
    open_to_pass = {
        full_service.data_dir,
        full_service.data_dir / "servers",
        full_service.data_dir / "builds",
    }
    for path in open_to_pass:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o711 if isolation == "landlock" else 0o700), path


def goals_of_root(full_service: FullService) -> Any:
    goals = goals_of(full_service, is_scoped=True)
    goals["files"] += [path for path in KEYS if os.path.exists(path)]
    # In its own root file system, the game server has folders of these names, which contain only
    # its own files.
    own = {str(full_service.data_dir.resolve() / name) for name in (".", "servers", "builds")}
    if full_service.settings["runtime"]["isolation"] != "landlock":
        goals["folders"] = [path for path in goals["folders"] if path not in own]
    return goals


async def test_groups_share_a_node_with_network_isolation() -> None:
    with serving("user") as full_service:
        if NETWORK_NOT_ISOLATED in (await runtime_status(full_service))[1]:
            pytest.skip("this kernel cannot isolate the network")
        async with open_two_groups(full_service, python(), "-S", "server.py") as back_ends:
            await answer_together(back_ends)


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_service_umask_does_not_affect_game_servers(isolation: str) -> None:
    with serving(isolation, PrivateService) as strict:
        async with open_back_end(strict, "http", python(), "-S", "server.py") as back_end:
            record = await back_end.running()
            await eventually(lambda: reached(record))


async def test_only_run_and_build_folders_are_open_to_other_users() -> None:
    with serving("landlock") as full_service:
        async with open_back_end(full_service, "http", python(), "-S", "server.py") as back_end:
            server = await back_end.running()
            await eventually(lambda: reached(server))
            root = full_service.data_dir
            open_paths = {
                str(path.relative_to(root)) for path in root.rglob("*") if is_for_others(root, path)
            }
            assert not {one for one in open_paths if not one.startswith("builds/")} - {
                "servers",
                "builds",
                # Planes of different users read it.
                "formats.json",
                f"servers/{server['id']}",
            }
            for name in ("", "servers", "builds", f"servers/{server['id']}"):
                assert not (root / name).stat().st_mode & 0o004, "other users cannot list it"


def is_for_others(root: Path, path: Path) -> bool:
    above = path.relative_to(root).parents
    return bool(path.lstat().st_mode & 0o007) and all(
        (root / one).stat().st_mode & 0o001 for one in above
    )
