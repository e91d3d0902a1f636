"""A data directory of the stored release, with live lobbies, tokens and running game servers, goes on with this code.

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
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.compatibility.interface_list import FOLDER
from tests.support.command_line import run
from tests.support.fault_shim import compiled_library
from tests.support.full_service import Developer, FullService, HttpClient, running
from tests.support.killed_service import KilledService
from tests.support.stored_openapi import RELEASE
from tests.support.waiting import eventually

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
    # A lock has the PID of its last holder.
    lock = {data / "control/LOCK": b""}
    assert contents(data) | lock == before | lock


@pytest.fixture
def service(folder: Path, facts: Any) -> Iterator[FullService]:
    """The service of this code over that directory, beside the running game servers."""
    assert run(folder / "data", "upgrade", "commit").returncode == 0
    check = run(folder / "data", "rollback-check")
    assert check.returncode == 1
    assert f"release {RELEASE} cannot read journal 2 (it reads 1), records" in check.stdout
    keeper = folder / "hosting-keeper"
    keeper.write_bytes(lzma.decompress((FOLDER / f"keeper-{RELEASE}.xz").read_bytes()))
    keeper.chmod(0o755)
    # After a reboot, service time continues by the wall clock. In the same boot, it follows the boot clock.
    boot_id = folder / "boot_id"
    boot_id.write_text(f"{uuid4()}\n")
    journal = {"segment_bytes": 1 << 20, "boot_id_path": str(boot_id)}
    service = KilledService(folder, compiled_library(), None, runtime=SETTINGS, journal=journal)
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


def pid_of(service: FullService, run_id: str) -> int:
    """PID of a game server, from the record that its keeper writes."""
    state = (service.data_dir / "servers" / run_id / "state").read_text()
    last = state.strip().split("\n\n")[-1]
    return int(dict(line.split("=", 1) for line in last.splitlines())["pid"])


async def code(
    client: HttpClient, slug: str, token: str, key: str | None = None, **fields: Any
) -> str:
    return (await client.call(slug, fields, token=token, key=key)).code


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
