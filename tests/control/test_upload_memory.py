"""Memory use of a PUT: the body is never held as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from pyservice.process.directory_lock import lock_holder_pid
from tests.control.service_fixtures import service_fixture
from tests.support.full_service import Developer

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(180)]

MIB = 1 << 20
BODY_BYTES = 64 * MIB
HELD_BYTES_MAX = BODY_BYTES // 2
"""Limit of the memory growth during one upload and one download."""
BLOCK = bytes(range(256)) * (MIB // 256)


full_service = service_fixture("function", kinds=["sqlite"])


def measured(pid: int, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert match is not None, name
    return int(match[1]) * 1024


def begin(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return measured(pid, "VmRSS")


async def body(length: int) -> AsyncIterator[bytes]:
    for _ in range(length // MIB):
        yield BLOCK


async def transfer(developer: Developer, length: int) -> None:
    game_id = await developer.game()
    site = await developer.good(
        "create_site",
        game_id=game_id,
        display_name="large",
        files=[{"path": "large.bin", "content_length": length}],
    )
    [request] = site["presigned_requests"]
    config = {"cdn": {"site_id": site["site_id"]}}
    headers = {"content-length": str(length)}
    async with httpx.AsyncClient(timeout=120) as client:
        answer = await client.put(request["url"], content=body(length), headers=headers)
        assert answer.status_code == 200, answer.text
        await developer.good("complete_upload", upload_id=site["upload_id"])
        version_id = await developer.version(game_id, config)
        target = {"game_id": game_id, "namespace_id": "prod"}
        await developer.good("set_version", **target, version_id=version_id)
        game = (await developer.good("get_game", game_id=game_id))["game"]
        url = f"http://{developer.full_service.ready['cdn']}/{game['name_id']}/prod/large.bin"
        digest = sha256()
        async with client.stream("GET", url) as download:
            assert download.status_code == 200
            async for block in download.aiter_raw():
                digest.update(block)
    expected = sha256()
    async for block in body(length):
        expected.update(block)
    assert digest.digest() == expected.digest()


async def test_body_of_64_mib_is_never_held_whole(developer: Developer) -> None:
    # The first request loads modules, so it is not measured.
    await transfer(developer, MIB)
    folders = (".", "control", "control/cdn")
    pids = [lock_holder_pid(developer.full_service.data_dir / folder) for folder in folders]
    before = [(pid, begin(pid)) for pid in pids if pid is not None]
    assert len(before) == 3
    await transfer(developer, BODY_BYTES)
    for pid, begin_bytes in before:
        added_bytes = measured(pid, "VmHWM") - begin_bytes
        assert added_bytes < HELD_BYTES_MAX, f"{added_bytes / MIB:.1f} MiB"


HOLDER = f"""
import sys
print(flush=True)
sys.stdin.buffer.readline()
held = sys.stdin.buffer.read({BODY_BYTES})
print(len(held), flush=True)
del held
sys.stdin.buffer.readline()
"""


def test_buffering_process_would_be_detected() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        before = begin(holder.pid)
        holder.stdin.write(b"\n")
        for _ in range(BODY_BYTES // MIB):
            holder.stdin.write(BLOCK)
        holder.stdin.flush()
        assert int(holder.stdout.readline()) == BODY_BYTES
        assert measured(holder.pid, "VmHWM") - before > BODY_BYTES - MIB
        holder.stdin.close()
