"""HTTP watches that wake together: a slow database read of one watch does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from pyservice.edge import woken_batch_endpoint, woken_batch_format
from pyservice.transport.rate_limits import Limits, Rate, Rates
from tests.support.forwarded_watches import (
    ParkingEndpoint,
    close_all,
    message,
    read_index,
    watch,
    watch_many,
)
from tests.support.forwarding_pair import (
    BILLING,
    GROUP,
    OTHER_GROUP,
    Servers,
    SmallControl,
    open_servers,
    until,
)
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import CONNECTED, HttpConnection, Response, code_of
from tests.support.slow_control import SlowRecords
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(woken_batch_endpoint, "_SLOW_AFTER_S", 0.3)


UNLIMITED = Limits(Rates(*[Rate(0, 1)] * 6))


@pytest.fixture
def control() -> SlowRecords:
    return SlowRecords()


@pytest.fixture
async def servers(tmp_path: Path, control: SlowRecords) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path, control, limits=UNLIMITED) as servers:
        yield servers


async def watch_both(servers: Servers) -> list[HttpConnection]:
    index = await read_index(servers)
    paths = (BILLING, f"/cloud/groups/{OTHER_GROUP}/billing")
    watching = [await watch(servers, index, path) for path in paths]
    await until(partial(_are_parked, servers, 2))
    return watching


def _are_parked(servers: Servers, number: int) -> bool:
    return len(servers.long_polls) == number


def change_both(control: SmallControl) -> None:
    control.topics.bump(f"group/{GROUP}", f"group/{OTHER_GROUP}")


async def read_soon(connection: HttpConnection) -> Response:
    return await asyncio.wait_for(connection.read(), PATIENCE_S)


async def test_watch_is_answered_before_a_slow_one(servers: Servers, control: SlowRecords) -> None:
    slow, other = await watch_both(servers)
    control.slow.add(GROUP)
    change_both(control)
    assert (await read_soon(other)).status == 200
    assert control.reading == 1
    control.may_end.set()
    assert (await read_soon(slow)).status == 200
    assert servers.metrics.http.in_flight == 0
    index = await read_index(servers)
    again = await watch(servers, index)
    await until(partial(_are_parked, servers, 1))
    servers.control.pay(GROUP, "now")
    assert (await read_soon(again)).json["group"] == {"payment_succeeded_ts": "now"}
    await close_all([slow, other, again])


async def test_equal_requests_wait_only_for_their_own_slow_read(
    servers: Servers, control: SlowRecords
) -> None:
    index = await read_index(servers)
    other = f"/cloud/groups/{OTHER_GROUP}/billing"
    watching = [await watch(servers, index, path) for path in (BILLING, other) * 20]
    await until(partial(_are_parked, servers, 40))
    control.slow.add(GROUP)
    change_both(control)
    for connection in watching[1::2]:
        assert (await read_soon(connection)).status == 200
    assert control.reading == 1
    control.may_end.set()
    for connection in watching[::2]:
        assert (await read_soon(connection)).status == 200
    await close_all(watching)


async def test_slow_watches_in_each_batch_delay_no_other(
    servers: Servers, control: SlowRecords
) -> None:
    """The watches form more batches than may run at one time, and each batch begins with a slow
    watch.
    """
    watching = await watch_many(servers, await read_index(servers), 700, tokens=True)
    slow = set(range(7, 700, 50))
    control.slow |= {str(number) for number in slow}
    control.pay(GROUP, "now")
    others = [one for number, one in enumerate(watching, 1) if number not in slow]
    answers = await asyncio.wait_for(asyncio.gather(*(one.read() for one in others)), PATIENCE_S)
    assert {answer.status for answer in answers} == {200}
    assert control.reading == len(slow)
    control.may_end.set()
    for number in slow:
        answer = await read_soon(watching[number - 1])
        assert answer.json["group"] == {"payment_succeeded_ts": "now"}
    assert servers.metrics.http.in_flight == 0
    assert servers.metrics.http.meters["get_billing"].codes["OK"] == 700 + 1
    await close_all(watching)


async def test_disconnect_during_a_slow_read_frees_the_request(
    servers: Servers, control: SlowRecords
) -> None:
    slow, other = await watch_both(servers)
    control.slow.add(GROUP)
    change_both(control)
    assert (await read_soon(other)).status == 200
    slow.writer.transport.abort()
    await until(lambda: servers.metrics.http.in_flight == 0)
    control.may_end.set()
    await until(lambda: control.reading == 0)
    assert len(servers.long_polls) == 0
    assert (await servers.http.call("PlayerConnected", CONNECTED)).code == "OK"
    await close_all([slow, other])


async def test_control_plane_outage_fails_only_the_slow_watch(
    servers: Servers, control: SlowRecords
) -> None:
    slow, other = await watch_both(servers)
    control.slow.add(GROUP)
    change_both(control)
    assert (await read_soon(other)).status == 200
    await servers.behind.stop()
    response = await read_soon(slow)
    assert (response.status, code_of(response)) == (503, "CONTROL_PLANE_UNAVAILABLE")
    assert control.reading == 0
    assert servers.metrics.http.in_flight == 0
    assert servers.metrics.http.meters["get_billing"].codes["OK"] == 2
    await close_all([slow, other])


async def test_slow_watch_times_out_and_others_are_answered(
    tmp_path: Path, control: SlowRecords
) -> None:
    async with open_servers(tmp_path, control, answer_timeout_ms=2_000) as servers:
        slow, other = await watch_both(servers)
        control.slow.add(GROUP)
        change_both(control)
        assert (await read_soon(other)).status == 200
        response = await read_soon(slow)
        assert (response.status, code_of(response)) == (504, "DEADLINE_EXCEEDED")
        await until(lambda: control.reading == 0)
        await close_all([slow, other])


async def test_shutdown_also_ends_slow_watches(servers: Servers, control: SlowRecords) -> None:
    slow, other = await watch_both(servers)
    control.slow.add(GROUP)
    change_both(control)
    assert (await read_soon(other)).status == 200
    await servers.server.stop(0.0)
    assert code_of(await read_soon(slow)) == "SHUTTING_DOWN"
    await close_all([slow, other])


async def test_fast_reads_form_one_part_and_a_slow_read_another(patient: None) -> None:
    control = SlowRecords(slow={"2"})
    endpoint = ParkingEndpoint(control)
    parts = endpoint.open(message("1", "2", "3")).parts()
    assert numbers_in(await anext(parts)) == [0, 2]
    assert control.reading == 1
    control.may_end.set()
    assert numbers_in(await anext(parts)) == [1]
    with pytest.raises(StopAsyncIteration):
        await anext(parts)
    assert endpoint.counts() == {"OK": 3}
    assert endpoint.metrics.http.in_flight == 0


async def test_slow_reads_do_not_delay_the_start_of_others(patient: None) -> None:
    control = SlowRecords(slow={str(number) for number in range(64)})
    endpoint = ParkingEndpoint(control)
    parts = endpoint.open(message(*map(str, range(100)))).parts()
    assert numbers_in(await anext(parts)) == list(range(64, 100))
    assert control.reading == 64
    control.may_end.set()
    rest = [number async for part in parts for number in numbers_in(part)]
    assert sorted(rest) == list(range(64))


async def test_fast_reads_form_one_part(patient: None) -> None:
    parts = ParkingEndpoint().open(message(*map(str, range(10)))).parts()
    assert [numbers_in(part) async for part in parts] == [list(range(10))]


async def test_closing_the_parts_cancels_slow_reads() -> None:
    control = SlowRecords(slow={"2"})
    endpoint = ParkingEndpoint(control)
    exchange = endpoint.open(message("1", "2"))
    parts = exchange.parts()
    assert numbers_in(await anext(parts)) == [0]
    await parts.aclose()
    exchange.abandon()
    assert control.reading == 0
    assert endpoint.counts() == {"OK": 1, "CANCELLED": 1}
    assert endpoint.metrics.http.in_flight == 0


def numbers_in(part: bytes) -> list[int]:
    return [number for number, _ in woken_batch_format.WokenReplyReader().feed(part)]
