"""The whole service as an ordinary user whose game servers have its own user: Landlock alone is between them."""

from __future__ import annotations

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
from tests.household import Developer, House, running
from tests.leftovers import pids_of
from tests.ordinary_user import interpreter
from tests.patience import eventually

pytestmark = pytest.mark.anyio

SOCKETS: Final = {
    "admin.sock",
    "control/grpc.sock",
    "control/http.sock",
    "edge/admin.sock",
}
FILES: Final = {
    "keys.json",
    "control/keys.json",
    "control/owner.token",
    "control/records.db",
    "edge/routes",
    "servers/notices",
}


@pytest.fixture
def house() -> Iterator[House]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = House(folder, runtime={**programs.SETTINGS, "isolation": "landlock"})
        made.interpreter = interpreter(folder)
        with running(made):
            yield made


@pytest.fixture
async def back(house: House) -> AsyncIterator[Servers]:
    door = house.door("http")
    developer = Developer(house, door)
    game_id = await developer.game()
    made = Servers(developer, game_id, await developer.service_token(game_id))
    await made.prepare_build()
    yield made
    await door.close()


async def test_a_game_server_of_our_user_reaches_nothing_of_ours(
    house: House, back: Servers
) -> None:
    ready = httpx.get(f"http://{house.said['metrics']}/readyz?verbose").text
    if "isolation landlock" not in ready:
        pytest.skip("this kernel has no Landlock")
    other = await back.running()
    await eventually(lambda: reached(other))
    goals = goals_of(house, is_scoped="can signal" not in ready)
    for path in goals["sockets"]:
        # For us somebody is there.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
    archive = programs.server_archive(
        *("python3", "-S", "hostile.py"),
        **{
            "hostile.py": (programs.FOLDER / "hostile.py").read_bytes(),
            "goals.json": json.dumps(goals).encode(),
        },
    )
    made = await back.create(runtime={"build": await back.build(archive)})
    record = await back.until(made["id"], "destroyed", "failed")
    lines = [(await back.lines(made["id"], stream))["lines"] for stream in ("std_out", "std_err")]
    assert lines == [["lives", "over"], []], record
    assert await reached(other), "nobody noticed"


def goals_of(house: House, *, is_scoped: bool) -> Any:
    """All that is in the data directory, and whoever serves it."""
    root = house.data_dir.resolve()
    everything = [path for path in root.rglob("*") if not path.is_symlink()]
    goals: Any = {
        "sockets": [str(path) for path in everything if path.is_socket()],
        "files": [str(path) for path in everything if path.is_file() or path.is_fifo()],
        "folders": [str(root), *(str(path) for path in everything if path.is_dir())],
        "pids": [house.process.pid if house.process else 0, *pids_of(root), *planes(root)],
        "is_scoped": is_scoped,
    }
    for names, kind in ((SOCKETS, "sockets"), (FILES, "files")):
        found = {str(Path(path).relative_to(root)) for path in goals[kind]}
        assert names <= found, found
    assert all(os.path.exists(f"/proc/{pid}") for pid in goals["pids"])
    return goals


def planes(root: Path) -> list[int]:
    return [int((root / name).read_text().split()[0]) for name in ("LOCK", "control/LOCK")]
