"""Sweeps remove folders that a crash left empty, also while an upload is about to write into a
folder.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyservice.storage.objects import Part, PendingObject
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
DAY_S = 86_400.0
AT_ONCE_S = -5.0
TIMES = 2
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.cdn_listener import running_listener
from tests.support.blob_stores import put_whole

async def delete(folder):
    async with running_listener(folder) as listener:
        await put_whole(listener.objects, "build/a", b"abc")
        await put_whole(listener.objects, "build/b", b"abc")
        os.rmdir = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        await listener.objects.delete_prefix("build")

asyncio.run(delete(Path(sys.argv[1])))
"""
"""Deletes all files of a build, and stops before it removes their folder, as a crash does."""


@pytest.fixture
async def listener(tmp_path: Path) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path / "objects") as listener:
        yield listener


def folders(folder: Path) -> set[str]:
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_dir()}
    return paths - {"incoming", "pending", "kept"}


def make_old(folder: Path) -> None:
    then_s = time.time() - 2 * DAY_S
    os.utime(folder, (then_s, then_s))


async def test_empty_folders_of_a_killed_deletion_are_removed_a_day_later(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    command = [sys.executable, "-c", KILLED, str(folder)]
    killed = await asyncio.to_thread(
        lambda: subprocess.run(command, cwd=ROOT, timeout=PATIENCE_S, check=False)
    )
    assert killed.returncode == -signal.SIGKILL
    assert folders(folder) == {"kept/build"}
    async with running_listener(folder) as listener:
        await listener.objects.drop_empty_folders(DAY_S)
        assert folders(folder) == {"kept/build"}
        make_old(folder / "kept" / "build")
        await listener.objects.drop_empty_folders(DAY_S)
        assert folders(folder) == set()


async def test_only_long_empty_folders_are_removed(listener: Listener) -> None:
    for key in ("a/kept", "b/c/d/kept"):
        await put_whole(listener.objects, key, b"abc")
    old = ("kept/old", "pending/old", "kept/deep/er/est", "kept/b/c/empty")
    for name in (*old, "kept/young", "kept/b/young"):
        (listener.folder / name).mkdir(parents=True)
    for name in folders(listener.folder) - {"kept/young", "kept/b/young"}:
        make_old(listener.folder / name)
    for name in ("kept", "pending", "incoming"):
        make_old(listener.folder / name)
    await listener.objects.drop_empty_folders(DAY_S)
    assert folders(listener.folder) == {
        *("kept/a", "kept/b", "kept/b/c", "kept/b/c/d"),
        *("kept/young", "kept/b/young"),
    }
    assert sorted(await listener.blobs.names("kept")) == ["kept/a/kept", "kept/b/c/d/kept"]
    assert all((listener.folder / name).is_dir() for name in ("kept", "pending", "incoming"))


@pytest.fixture(params=["mkdir", "replace", "open"])
async def swept(
    request: pytest.FixtureRequest, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[str]]:
    """Sweeps all empty folders before each call of this function on a file of an object, twice for
    each file. Yields the paths of these calls.
    """
    loop, name = asyncio.get_running_loop(), request.param
    folders = tuple(f"{listener.folder}/{name}/" for name in ("kept", "pending"))
    do: Any = getattr(os, name)
    before: list[str] = []

    def sweep_first(*arguments: Any, **more: Any) -> Any:
        path = str(arguments[-1 if name == "replace" else 0])
        is_folder = name == "open" and Path(path).is_dir()
        if path.startswith(folders) and not is_folder and before.count(path) < TIMES:
            before.append(path)
            sweeping = listener.blobs.drop_empty_folders(AT_ONCE_S)
            asyncio.run_coroutine_threadsafe(sweeping, loop).result(PATIENCE_S)
        return do(*arguments, **more)

    monkeypatch.setattr(os, name, sweep_first)
    yield before
    assert before


async def test_sweep_during_a_write_removes_no_needed_folder(
    listener: Listener, swept: list[str]
) -> None:
    key, parts = "deep/er/est/a", [Part(0, 3), Part(3, 2)]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for (offset, length), content in zip(parts, (b"abc", b"de"), strict=True):
            url = await listener.objects.presign_put(key, length, 60, offset)
            assert (await client.put(url, content=content)).status_code == 200
    await listener.objects.complete([PendingObject(key, parts)])
    await put_whole(listener.objects, "made/here/b", b"fg")
    for name, content in ((key, b"abcde"), ("made/here/b", b"fg")):
        assert b"".join([block async for block in listener.objects.read(name)]) == content
    assert listener.left_behind() == []
