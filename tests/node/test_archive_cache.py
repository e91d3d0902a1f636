"""Archives on the disk of a node: transfers, digests, eviction and faults."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from pyservice.errors import ServiceError
from pyservice.node import archive_cache
from pyservice.node.archive_cache import ArchiveCache, ArchiveDamaged
from pyservice.pb.hosting.internal.v1.archives_pb2 import GetResponse
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio

LENGTH = 100_000


def content_of(number: int) -> bytes:
    return bytes([number]) * LENGTH


def digest_of(number: int) -> str:
    return hashlib.sha256(content_of(number)).hexdigest()


class Service:
    """Archives by digest, as the service sends them."""

    def __init__(self) -> None:
        self.contents = {digest_of(number): content_of(number) for number in range(10)}
        self.transfers: Counter[str] = Counter()
        self.permits = asyncio.Semaphore(1_000)
        """A transfer takes one for each piece."""

    async def fetch(self, sha256: bytes) -> AsyncGenerator[GetResponse, None]:
        name = sha256.hex()
        self.transfers[name] += 1
        if name not in self.contents:
            raise ServiceError("BUILD_NOT_FOUND")
        content = self.contents[name]
        length = LENGTH
        for start in range(0, len(content), 40_000):
            await self.permits.acquire()
            yield GetResponse(content_length=length, content=content[start : start + 40_000])
            length = 0


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archives"


def cache_of(folder: Path, service: Service, archives: int = 3) -> ArchiveCache:
    cache = ArchiveCache(folder, service.fetch, archives * LENGTH, 0)
    cache.recover()
    return cache


async def read(cache: ArchiveCache, number: int) -> bytes:
    with await cache.open(digest_of(number)) as file:
        return file.read()


def stored(folder: Path) -> list[int]:
    numbers = {digest_of(number): number for number in range(10)}
    return sorted(numbers[path.name] for path in folder.iterdir())


async def test_archive_is_transferred_once(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    service.permits = asyncio.Semaphore(0)
    reads = [asyncio.create_task(read(cache, 1)) for _ in range(20)]
    await until_met(lambda: service.transfers.total() == 1)
    for _ in range(3):
        service.permits.release()
    assert await asyncio.gather(*reads) == [content_of(1)] * 20
    assert await read(cache, 1) == content_of(1)
    assert service.transfers == {digest_of(1): 1}
    assert (stored(folder), cache.used_bytes) == ([1], LENGTH)


async def test_transfer_goes_on_without_its_callers(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    service.permits = asyncio.Semaphore(0)
    reading = asyncio.create_task(read(cache, 1))
    await until_met(lambda: service.transfers.total() == 1)
    reading.cancel()
    for _ in range(3):
        service.permits.release()
    await until_met(lambda: stored_whole(folder))
    assert await read(cache, 1) == content_of(1)
    assert service.transfers.total() == 1


def stored_whole(folder: Path) -> bool:
    return (folder / digest_of(1)).exists()


async def test_stop_ends_transfers(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    service.permits = asyncio.Semaphore(1)
    reading = asyncio.create_task(read(cache, 1))
    await until_met(lambda: service.permits.locked())
    await cache.stop()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert list(folder.iterdir()) == []


async def test_least_recently_used_archive_is_evicted(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    for number in (1, 2, 3, 1, 4):
        await read(cache, number)
    assert stored(folder) == [1, 3, 4]
    with await cache.open(digest_of(3)) as file:
        for number in (5, 6, 7):
            await read(cache, number)
        assert stored(folder) == [5, 6, 7]
        assert file.read() == content_of(3), "an open file stays readable"


async def test_order_of_use_survives_a_restart(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    for number in (1, 2, 3):
        await read(cache, number)
        os.utime(folder / digest_of(number), (number, number))
    os.utime(folder / digest_of(1), (10, 10))
    (folder / f"{digest_of(4)}.aa.part").write_bytes(b"unfinished")
    (folder / "notes").write_text("not an archive")
    cache = cache_of(folder, service)
    assert cache.used_bytes == 3 * LENGTH
    await read(cache, 4)
    (folder / "notes").unlink()
    assert stored(folder) == [1, 3, 4]
    await read(cache, 3)
    assert service.transfers[digest_of(3)] == 1


async def test_file_that_was_damaged_meanwhile_is_transferred_again(
    folder: Path, service: Service
) -> None:
    await read(cache_of(folder, service), 1)
    (folder / digest_of(1)).write_bytes(b"damaged by a crash")
    cache = cache_of(folder, service)
    assert await read(cache, 1) == content_of(1)
    assert service.transfers[digest_of(1)] == 2
    assert cache.used_bytes == LENGTH


async def test_removed_file_is_transferred_again(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    await read(cache, 1)
    (folder / digest_of(1)).unlink()
    assert await read(cache, 1) == content_of(1)
    assert (service.transfers[digest_of(1)], cache.used_bytes) == (2, LENGTH)


@pytest.mark.parametrize(
    "content", [content_of(2), content_of(1) + b"more", content_of(1)[:-1], b""]
)
async def test_content_of_another_digest_is_refused(
    folder: Path, service: Service, content: bytes
) -> None:
    cache = cache_of(folder, service)
    service.contents[digest_of(1)] = content
    with pytest.raises(ArchiveDamaged):
        await read(cache, 1)
    assert (list(folder.iterdir()), cache.used_bytes) == ([], 0)
    service.contents[digest_of(1)] = content_of(1)
    assert await read(cache, 1) == content_of(1)


async def test_errors_of_the_service_reach_all_callers(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    del service.contents[digest_of(1)]
    results = await asyncio.gather(*(read(cache, 1) for _ in range(3)), return_exceptions=True)
    assert [str(result).partition(":")[0] for result in results] == ["BUILD_NOT_FOUND"] * 3
    assert service.transfers.total() == 1


async def test_stalled_transfer_ends(
    folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_cache, "STALL_S", 0.05)
    service.permits = asyncio.Semaphore(1)
    cache = cache_of(folder, service)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read(cache, 1), PATIENCE_S)
    assert list(folder.iterdir()) == []


async def test_archive_larger_than_the_limit_takes_the_place_of_all(
    folder: Path, service: Service
) -> None:
    await read(cache_of(folder, service), 1)
    cache = ArchiveCache(folder, service.fetch, LENGTH // 2, 0)
    cache.recover()
    assert await read(cache, 2) == content_of(2)
    assert stored(folder) == [2]


async def test_reserve_of_the_disk_is_kept(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service)
    await read(cache, 1)
    cache = ArchiveCache(folder, service.fetch, 3 * LENGTH, 1 << 60)
    cache.recover()
    with pytest.raises(OSError, match="do not fit"):
        await read(cache, 2)
    assert stored(folder) == []


async def test_transfers_at_once_are_limited(folder: Path, service: Service) -> None:
    cache = cache_of(folder, service, archives=10)
    service.permits = asyncio.Semaphore(0)
    reads = [asyncio.create_task(read(cache, number)) for number in range(8)]
    await until_met(lambda: service.transfers.total() == archive_cache.FETCHES_MAX)
    for _ in range(8 * 3):
        service.permits.release()
    assert await asyncio.gather(*reads) == [content_of(number) for number in range(8)]


@pytest.mark.parametrize("name", ["", "../etc/passwd", "A" * 64, "a" * 63, "a" * 65])
async def test_other_names_than_digests_are_refused(
    folder: Path, service: Service, name: str
) -> None:
    with pytest.raises(ValueError, match="is no SHA-256"):
        await cache_of(folder, service).open(name)
