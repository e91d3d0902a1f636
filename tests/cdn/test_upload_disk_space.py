"""Free disk space among uploads: received bytes count, announced lengths do not, and the reserve
stays free.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pyservice.storage.signed_urls import UrlGrant, UrlSigner
from tests.cdn.raw_http import Connect, Wire
from tests.support.cdn_listener import KEY
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
FAR_FUTURE_S = 4_000_000_000
MIB = 1 << 20
DISK_MIB = 32
MOMENT_S = 0.02
LOOKS = 200
RESERVE_BYTES = 8 * MIB


@dataclass
class SmallListener:
    url: str
    disk: SmallDisk
    pid: int

    def target(self, key: str, length: int) -> str:
        return self.url + UrlSigner(KEY).target(UrlGrant("PUT", key, FAR_FUTURE_S, length))

    def free_bytes(self) -> int:
        file_system = os.statvfs(self.disk.inside(self.pid))
        return file_system.f_bavail * file_system.f_frsize

    def files(self) -> list[str]:
        folder = self.disk.inside(self.pid) / "objects"
        return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallListener]:
    disk = small_disk(tmp_path, DISK_MIB)
    command = [*disk.command_prefix, sys.executable, "-m", "tests.support.cdn_listener"]
    process = subprocess.Popen(
        [*command, str(disk.mount_point / "objects"), str(RESERVE_BYTES)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield SmallListener(process.stdout.readline().decode().strip(), disk, process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def announce(wire: Wire, url: str, length: int) -> int:
    """Sends only the head of an upload and returns the status of the response."""
    await wire.put_head(url, f"Content-Length: {length}", "Expect: 100-continue")
    return (await wire.answer())[0]


async def test_announced_bytes_reserve_no_space(small: SmallListener, connect: Connect) -> None:
    length = 1 << (small.free_bytes() - RESERVE_BYTES).bit_length() - 1
    for number in range(4):
        wire = await connect(small.url)
        assert await announce(wire, small.target(f"up/a{number}", length), length) == 100
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answer = await client.put(small.target("up/b", length), content=b"x" * length)
        assert answer.status_code == 200
        answer = await client.put(small.target("up/c", length), content=b"x" * length)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_FULL")
    assert small.files() == ["b.0"]


@contextlib.contextmanager
def least_free(small: SmallListener) -> Iterator[list[int]]:
    """Measures the least free space that lasted for a moment.

    ext4 subtracts blocks twice for a moment while it allocates them.
    """
    least, is_over = [small.free_bytes()], threading.Event()

    def look() -> None:
        while not is_over.is_set():
            end, most, looks = time.monotonic() + MOMENT_S, 0, 0
            # On a busy machine this thread may not run during a moment, so a minimum number of
            # reads is needed.
            while time.monotonic() < end or looks < LOOKS:
                most, looks = max(most, small.free_bytes()), looks + 1
            least[0] = min(least[0], most)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield least
    finally:
        is_over.set()
        watching.join()


async def test_concurrent_uploads_stop_at_the_reserve_and_leave_nothing(
    small: SmallListener, connect: Connect
) -> None:
    length = 10 * MIB
    wires = [await connect(small.url) for _ in range(4)]
    for number, wire in enumerate(wires):
        assert await announce(wire, small.target(f"up/a{number}", length), length) == 100

    async def send(wire: Wire) -> tuple[int, bytes]:
        with contextlib.suppress(ConnectionError):
            for _ in range(length // (256 << 10)):
                await wire.send(b"x" * (256 << 10))
        status, _, body = await wire.answer(30)
        return status, body

    with least_free(small) as least:
        answers = await asyncio.gather(*map(send, wires))
    assert least[0] >= RESERVE_BYTES
    whole = [f"a{number}.0" for number, (status, _) in enumerate(answers) if status == 200]
    assert len(whole) < 3
    for status, body in answers:
        assert status == 200 or b"STORAGE_FULL" in body
    assert small.files() == whole
    answer = await asyncio.to_thread(httpx.put, small.target("up/b", MIB), content=b"x" * MIB)
    assert answer.status_code == 200
