"""A game server that attacks its host, and the isolation that the runtime reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support import game_programs
from tests.support.full_service import FullService
from tests.support.leftover_processes import pids_of
from tests.support.server_back_end import ServerBackEnd
from tests.support.waiting import PATIENCE_S, eventually

SOCKETS: Final = {
    *("admin.sock", "data-http.sock", "data-grpc.sock", "control/grpc.sock"),
    *("control/http.sock", "edge/admin.sock"),
}
FILES: Final = {
    "keys.json",
    "control/keys.json",
    "control/owner.token",
    "control/records.db",
    "edge/routes",
    "servers/notices",
}


async def runtime_status(full_service: FullService) -> tuple[str, set[str]]:
    """Returns the runtime line of `/readyz?verbose` without the reasons: the isolation and the
    limits that are not enforced.
    """

    async def looked() -> str | None:
        status = httpx.get(
            f"http://{full_service.ready['metrics']}/readyz?verbose", timeout=PATIENCE_S
        ).text
        [line] = [line for line in status.splitlines() if line.startswith("runtime: ")]
        # The service detects the isolation shortly after its servers are open.
        return line.removeprefix("runtime: ") if "isolation" in line else None

    runs, _, unenforced = (await eventually(looked)).partition("; unenforced: ")
    return runs, {one.partition(":")[0] for one in unenforced.split("; ") if one}


async def reaches_nothing(back_end: ServerBackEnd, goals: Any, python: str) -> None:
    """Returns whether the hostile game server reports that every attempt failed."""
    archive = game_programs.server_archive(
        *(python, "-S", "hostile.py"),
        **{
            "hostile.py": (game_programs.FOLDER / "hostile.py").read_bytes(),
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
