"""Names of other servers: bounded in time, in number and in number for each tenant."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pyservice.dataplane.outbound_http import DnsResolver, OutboundHttpClient
from pyservice.network.hosts import anywhere
from tests.dataplane.other_server import other_server
from tests.support.waiting import PATIENCE_S

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


async def until_none(lookups: DnsResolver) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(lookups):
            await asyncio.sleep(0.002)


def ask(lookups: DnsResolver, tenant: bytes, names: list[str]) -> list[asyncio.Task[list[str]]]:
    return [asyncio.create_task(lookups.addresses(name, tenant)) for name in names]


async def test_names_that_nobody_answers_for_leave_others_their_lookups(holes: Holes) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    asked = ask(lookups, b"slow", [f"hole{number}.example" for number in range(20)])
    assert await lookups.addresses("good.example", b"good") == ["127.0.0.1"]
    assert len(lookups) == 8
    assert not any(task.done() for task in asked)
    # Those over the share wait for their turn, as does one that would be answered.
    later = ask(lookups, b"slow", ["good.example"])
    holes.free.set()
    assert await asyncio.gather(*asked, *later) == [["127.0.0.1"]] * 21
    await until_none(lookups)
    assert await lookups.addresses("hole1.example", b"slow") == ["127.0.0.1"]


async def test_when_all_places_are_taken_whoever_is_below_the_share_has_the_next(
    holes: Holes,
) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    asked = [
        task
        for tenant in range(8)
        for task in ask(
            lookups, b"slow %d" % tenant, [f"hole-{tenant}-{n}.example" for n in range(10)]
        )
    ]
    await asyncio.sleep(0)
    assert len(lookups) == 64
    other = asyncio.create_task(lookups.addresses("good.example", b"good"))
    await asyncio.sleep(0)
    assert len(lookups) == 64
    holes.free.set()
    assert await other == ["127.0.0.1"]
    assert await asyncio.gather(*asked) == [["127.0.0.1"]] * 80
    await until_none(lookups)
    assert len(lookups._queue) == 0


async def test_so_many_of_one_tenant_wait_and_not_more(holes: Holes) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    asked = ask(lookups, b"slow", [f"hole{number}.example" for number in range(512)])
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="wait to be looked up"):
        await lookups.addresses("good.example", b"slow")
    assert await lookups.addresses("good.example", b"good") == ["127.0.0.1"]
    for task in asked:
        task.cancel()
    holes.free.set()
    await until_none(lookups)


async def test_a_lookup_is_given_up_in_time_and_counts_until_it_has_ended(holes: Holes) -> None:
    lookups = DnsResolver(per_tenant=1, timeout_ms=50)
    # The second waits for the same thread, the third for a place.
    for name in ("hole.example", "hole.example", "good.example"):
        with pytest.raises(OSError, match=r"not resolved within 0\.05 s"):
            await lookups.addresses(name, b"slow")
    assert holes.asked == ["hole.example"]
    holes.free.set()
    await until_none(lookups)
    assert await lookups.addresses("good.example", b"slow") == ["127.0.0.1"]
    assert len(lookups._queue) == 0


async def test_a_name_that_is_being_looked_up_is_nobodys_alone(holes: Holes) -> None:
    lookups = DnsResolver(at_once=3, per_tenant=2, timeout_ms=20_000)
    asked = ask(lookups, b"a", ["hole1", "hole2"]) + ask(lookups, b"b", ["hole3", "hole4"])
    asked += ask(lookups, b"c", ["hole1", "hole4"])
    await asyncio.sleep(0)
    assert len(lookups) == 3
    holes.free.set()
    assert await asyncio.gather(*asked) == [["127.0.0.1"]] * 6
    # Two waited for one and the same: it may have ended before the other's turn came.
    assert sorted(set(holes.asked)) == ["hole1", "hole2", "hole3", "hole4"]


async def test_who_goes_away_leaves_the_lookup_to_the_others(holes: Holes) -> None:
    lookups = DnsResolver()
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
    outbound = OutboundHttpClient(anywhere)
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
