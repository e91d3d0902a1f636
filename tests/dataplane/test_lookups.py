"""Names of other servers: bounded in time, in number and in number for each tenant."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pyservice.dataplane.lookups import Lookups
from pyservice.dataplane.outbound import Outbound
from pyservice.hosts import anywhere
from tests.dataplane.other_server import other_server

pytestmark = pytest.mark.anyio


class Holes:
    """Names that begin with `hole` get no answer before `free` is set; others are this host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.asked: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host.startswith("hole"):
            self.free.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def holes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Holes]:
    made = Holes(monkeypatch)
    yield made
    made.free.set()


async def until_none(lookups: Lookups) -> None:
    async with asyncio.timeout(20):
        while len(lookups):
            await asyncio.sleep(0.002)


def ask(lookups: Lookups, tenant: bytes, names: list[str]) -> list[asyncio.Task[list[str]]]:
    return [asyncio.create_task(lookups.addresses(name, tenant)) for name in names]


async def test_names_that_nobody_answers_for_leave_others_their_lookups(holes: Holes) -> None:
    lookups = Lookups()
    asked = ask(lookups, b"slow", [f"hole{number}.example" for number in range(20)])
    async with asyncio.timeout(20):
        # Those over the share are refused while the others still wait.
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 12:
            more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= more
    assert {str(task.exception()) for task in done} == {
        "too many names of this game are looked up already"
    }
    assert (len(lookups), len(waiting)) == (8, 8)
    assert await lookups.addresses("good.example", b"good") == ["127.0.0.1"]
    assert not any(task.done() for task in waiting)
    holes.free.set()
    assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 8
    await until_none(lookups)
    assert await lookups.addresses("hole1.example", b"slow") == ["127.0.0.1"]


async def test_a_lookup_is_given_up_in_time_and_counts_until_it_has_ended(holes: Holes) -> None:
    lookups = Lookups(per_tenant=1, timeout_ms=50)
    for _ in range(2):
        with pytest.raises(OSError, match=r"not resolved within 0\.05 s"):
            await lookups.addresses("hole.example", b"slow")
    assert holes.asked == ["hole.example"]
    with pytest.raises(OSError, match="of this game"):
        await lookups.addresses("good.example", b"slow")
    holes.free.set()
    await until_none(lookups)
    assert await lookups.addresses("good.example", b"slow") == ["127.0.0.1"]


async def test_there_is_a_bound_for_all_together(holes: Holes) -> None:
    lookups = Lookups(at_once=3, per_tenant=2)
    asked = ask(lookups, b"a", ["hole1", "hole2"]) + ask(lookups, b"b", ["hole3", "hole4"])
    with pytest.raises(OSError, match="too many names are looked up already"):
        await asked[3]
    # A name that is being looked up is nobody's alone.
    shared = asyncio.create_task(lookups.addresses("hole1", b"c"))
    holes.free.set()
    assert await asyncio.gather(*asked[:3], shared) == [["127.0.0.1"]] * 4


async def test_who_goes_away_leaves_the_lookup_to_the_others(holes: Holes) -> None:
    lookups = Lookups()
    first, second = ask(lookups, b"a", ["hole", "hole"])
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    holes.free.set()
    assert await second == ["127.0.0.1"]


class _Recording(ThreadPoolExecutor):
    """Notes what it is given to do."""

    def __init__(self) -> None:
        super().__init__(1)
        self.given: list[object] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given.append(fn)
        return super().submit(fn, *args, **kwargs)


async def test_no_lookup_takes_a_thread_of_the_loops_executor(holes: Holes) -> None:
    loop = asyncio.get_running_loop()
    executor = _Recording()
    loop.set_default_executor(executor)
    # Whatever else the process hands to threads waits for nobody's name.
    outbound = Outbound(anywhere)
    async with other_server() as server:
        hanging = asyncio.create_task(
            outbound.post(server.url(host="hole.example"), b"", {}, "0" * 32, tenant=b"slow")
        )
        for host in ("good.example", "127.0.0.1"):
            answer = await outbound.post(server.url(host=host), b"", {}, "0" * 32, tenant=b"good")
            assert answer.status == 200
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert len(executor.given) == 1
        assert not hanging.done()
        holes.free.set()
        assert (await hanging).status == 200
    await outbound.close()
