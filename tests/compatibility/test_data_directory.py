"""A data directory of the stored release, with live lobbies, tokens and running game servers, goes on with this code.

Until the upgrade is committed, it also goes on with the stored release itself.

`make_directory.py` wrote the directory with the code of that release and killed the service. A process cannot
be stored, so the fixture starts the keepers of the game servers again, from the program of that release. The wall
clock of the service starts at the time when the directory was written, so that its reservation is still valid.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice import data_formats
from pyservice.runtime.run_folder import RunFolder
from tests.compatibility.interface_list import FOLDER
from tests.support.command_line import run
from tests.support.fault_shim import compiled_library
from tests.support.full_service import Developer, FullService, HttpClient, running
from tests.support.killed_service import KilledService
from tests.support.network_namespace import own_network
from tests.support.stored_openapi import RELEASE
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64"),
]

SETTINGS: Final = {"cpu_millicores": 64_000, "memory_mb": 64_000, "isolation": "landlock"}
_OF_OLD_MACHINE: Final = (b"cgroup=", b"oom_counter=")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that game servers, which run as other users, can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def facts(folder: Path) -> Any:
    """Unpacks the directory to `folder/data` and returns the ids and tokens in it."""
    with tarfile.open(FOLDER / f"directory-{RELEASE}.tar.xz") as archive:
        archive.extractall(folder, filter="tar")
    facts = json.loads((folder / "facts.json").read_text())
    for spec in (folder / "data/servers").glob("*/spec"):
        content = spec.read_bytes().replace(facts["folder"].encode(), bytes(folder))
        fields = content.split(b"\0")
        spec.write_bytes(b"\0".join(one for one in fields if not one.startswith(_OF_OLD_MACHINE)))
    return facts


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def changed(before: dict[Path, bytes], after: dict[Path, bytes]) -> set[Path]:
    """Returns the files with another content. A lock has the PID of its last holder."""
    paths = {path for path in before.keys() | after.keys() if not path.name.endswith("LOCK")}
    return {path for path in paths if before.get(path) != after.get(path)}


def test_directory_stays_as_it_is_until_the_upgrade_is_committed(folder: Path, facts: Any) -> None:
    assert facts
    data = folder / "data"
    before = contents(data)
    refused = run(data, "serve")
    assert refused.returncode == 1
    assert f"was written by release {RELEASE}, which cannot read" in refused.stderr
    assert "journal 2 (it reads 1)" in refused.stderr
    assert f"run pyservice upgrade commit --data-dir {data}" in refused.stderr
    assert run(data, "migrate").returncode == 1
    assert "and nothing is lost" in run(data, "rollback-check").stdout
    assert changed(before, contents(data)) == set()


def test_run_folders_of_the_release_can_be_read(folder: Path, facts: Any) -> None:
    """`runs` in `data_formats` is their version. A change that cannot read them needs a new number there."""
    assert data_formats._FORMATS["runs"] == data_formats._FIRST.formats["runs"]
    for run_id in (facts["server_id"], facts["hosted"]["lobby_id"]):
        run_folder = RunFolder(folder / "data/servers" / run_id)
        state = run_folder.state()
        assert state is not None
        assert (state.status, state.exit_code) == ("running", None)
        assert run_folder.note()
        assert run_folder.spec_values("id") == [run_id]
        assert list(run_folder.lines())


@pytest.fixture
def network() -> Iterator[None]:
    """The directory has port numbers that another program could use."""
    with own_network():
        yield


@pytest.fixture
def keeper(folder: Path) -> Path:
    """The keeper of the stored release."""
    keeper = folder / "hosting-keeper"
    keeper.write_bytes(lzma.decompress((FOLDER / f"keeper-{RELEASE}.xz").read_bytes()))
    keeper.chmod(0o755)
    return keeper


@pytest.fixture
def release(folder: Path, keeper: Path) -> tuple[str, ...]:
    """Command that runs Python with the stored release in place of this code.

    The native module of that release is for Python 3.11 alone.
    """
    if sys.version_info[:2] != (3, 11):
        pytest.skip("no Python 3.11: `make build PYTHON=python3.11`")
    with tarfile.open(FOLDER / f"release-{RELEASE}.tar.xz") as archive:
        archive.extractall(folder / "release", filter="tar")
    programs = folder / "release/pyservice/bin"
    programs.mkdir()
    os.link(keeper, programs / keeper.name)
    return ("env", f"--chdir={folder / 'release'}", sys.executable)


UPGRADED: Final = "upgraded"
REFUSED: Final = "refused"


@pytest.fixture(params=[UPGRADED, REFUSED])
def service(
    request: pytest.FixtureRequest, folder: Path, facts: Any, keeper: Path, network: None
) -> Iterator[FullService]:
    """A service over that directory, beside the running game servers.

    Runs this code after a commit, or the stored release after this code was refused.
    """
    interpreter: tuple[str, ...] = (sys.executable,)
    if request.param == UPGRADED:
        commit(folder / "data")
    else:
        interpreter = request.getfixturevalue("release")
        assert run(folder / "data", "serve").returncode == 1
    # After a reboot, service time continues by the wall clock. In the same boot, it follows the boot clock.
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{uuid4()}\n")
    journal = {"segment_bytes": 1 << 20, "boot_id_path": str(boot_id)}
    service = KilledService(folder, compiled_library(), None, runtime=SETTINGS, journal=journal)
    service.interpreter = interpreter
    service.settings = {"runtime": SETTINGS, "journal": journal}
    service.shim.shift_wall_clock(facts["created_s"] - time.time())
    try:
        for spec in (folder / "data/servers").glob("*/spec"):
            (spec.parent / "state").unlink()
            subprocess.run([keeper, spec.parent], check=True)
        with contextlib.ExitStack() as listeners:
            # The stored program listens at none of its ports, and such a lobby gets no players.
            for spec in (folder / "data/servers").glob("*/spec"):
                for number in re.findall(rb"env=PORT_\w+=(\d+)", spec.read_bytes()):
                    listeners.enter_context(socket.create_server(("127.0.0.1", int(number))))
            with running(service):
                yield service
    finally:
        service.close()


def commit(data_dir: Path) -> None:
    assert run(data_dir, "upgrade", "commit").returncode == 0
    check = run(data_dir, "rollback-check")
    assert check.returncode == 1
    assert f"release {RELEASE} cannot read journal 2 (it reads 1), records" in check.stdout
    assert re.search(r"before the upgrade \(\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z\)", check.stdout)


def pid_of(service: FullService, run_id: str) -> int:
    """PID of a game server, from the record that its keeper writes."""
    state = (service.data_dir / "servers" / run_id / "state").read_text()
    last = state.strip().split("\n\n")[-1]
    return int(dict(line.split("=", 1) for line in last.splitlines())["pid"])


async def code(
    client: HttpClient, slug: str, token: str, key: str | None = None, **fields: Any
) -> str:
    return (await client.call(slug, fields, token=token, key=key)).code


@pytest.mark.full
async def test_players_lobbies_and_tokens_go_on(service: FullService, facts: Any) -> None:
    async with service.open_client("http") as client:
        assert isinstance(client, HttpClient)
        for lobby in (facts["attached"], facts["hosted"]):
            token, player = lobby["lobby_token"], lobby["connected_token"]
            # The same socket may repeat its call; another one is refused.
            assert (
                await code(client, "connected", token, lobby["connected_key"], player_token=player)
                == "OK"
            )
            assert (
                await code(client, "connected", token, "other", player_token=player)
                == "PLAYER_TOKEN_CONSUMED"
            )
            assert await code(client, "disconnected", token, player_token=player) == "OK"
        lobby_token, reserved = (
            facts["attached"][name] for name in ("lobby_token", "reserved_token")
        )
        first = await code(client, "connected", lobby_token, "one", player_token=reserved)
        second = await code(client, "connected", lobby_token, "two", player_token=reserved)
        assert (first, second) == ("OK", "PLAYER_TOKEN_CONSUMED")
        for mode in ("attached", "hosted"):
            response = await client.call(
                "find", {"game_modes": [mode]}, token=facts["public_token"]
            )
            assert response.code == "OK", response
            assert response.body["lobby"]["lobby_id"] == facts[mode]["lobby_id"]
            player = response.body["player"]["token"]
            assert (
                await code(client, "connected", facts[mode]["lobby_token"], player_token=player)
                == "OK"
            )


@pytest.mark.full
async def test_running_game_servers_are_taken_over(service: FullService, facts: Any) -> None:
    runs = (facts["server_id"], facts["hosted"]["lobby_id"])
    pids = [pid_of(service, run) for run in runs]
    async with service.open_client("http") as client:
        owner = Developer(service, client, facts["cloud_token"])
        page = await owner.good("list_servers", game_id=facts["game_id"], environment_id="prod")
        assert [(one["id"], one["status"]) for one in page["servers"]] == [
            (facts["server_id"], "running")
        ]
        for pid in pids:
            os.kill(pid, 0)
        await owner.good(
            "destroy_server",
            game_id=facts["game_id"],
            environment_id="prod",
            server_id=facts["server_id"],
            override_kill_timeout=0,
        )

        async def is_destroyed() -> bool:
            page = await owner.good("list_servers", game_id=facts["game_id"], environment_id="prod")
            return not page["servers"]

        await eventually(is_destroyed)
        os.kill(pids[1], 0)


@pytest.mark.full
async def test_records_and_new_work_go_on(service: FullService, facts: Any) -> None:
    async with service.open_client("http") as client:
        owner = Developer(service, client, facts["cloud_token"])
        game = await owner.good("get_game", game_id=facts["game_id"])
        assert game["game"]["name_id"] == "kept"
        version = await owner.version(facts["game_id"], name="2.0.0")
        await owner.good(
            "set_version", game_id=facts["game_id"], namespace_id="prod", version_id=version
        )
        assert await owner.lobby(facts["game_id"], facts["service_token"])


@pytest.mark.usefixtures("facts")
@pytest.mark.full
def test_stored_release_refuses_what_rollback_check_names(
    folder: Path, release: tuple[str, ...]
) -> None:
    commit(folder / "data")
    service = FullService(folder, runtime=SETTINGS)
    with running(service):
        assert service.stop() == 0
    before = contents(service.data_dir)
    old = FullService(folder, runtime=SETTINGS)
    old.interpreter, old.settings = release, {"runtime": SETTINGS}
    assert old.spawn().wait(PATIENCE_S) == 1
    assert "has format version 2, this build reads 1" in old.log()
    old.close()
    assert changed(before, contents(old.data_dir)) == set()
    with running(service):
        assert service.stop() == 0
