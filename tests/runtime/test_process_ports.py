"""Ports that processes bind, on a machine where other programs have most of them."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pytest

from pyservice.port_ranges import PROCESS_PORTS
from pyservice.runtime import orders, places
from pyservice.runtime.orders import End, Order, PortOrder
from tests.foreign_ports import ADDRESS, Foreigner, many_files
from tests.runtime.node import Place, until

pytestmark = pytest.mark.anyio

FREE: Final = 3
NUMBERS: Final = PROCESS_PORTS
BIND: Final = """
import os, socket, time
kind = socket.SOCK_{kind}
bound = socket.socket(type=kind)
bound.bind(("{address}", int(os.environ["PORT_GAME"])))
print("bound", flush=True)
time.sleep(3600)
"""


@pytest.fixture(params=[socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
def foreigner(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Foreigner]:
    for module in (orders, places):
        monkeypatch.setattr(module, "ADDRESS", ADDRESS)
    with many_files(len(NUMBERS)), closing(Foreigner(request.param, NUMBERS, FREE)) as made:
        yield made


def want(place: Place, foreigner: Foreigner) -> Order:
    """A game server that needs one port."""
    is_datagram = foreigner.kind is socket.SOCK_DGRAM
    program = BIND.format(kind=foreigner.kind.name.removeprefix("SOCK_"), address=ADDRESS)
    script = f"exec '{sys.executable}' -S -c '{program}'"
    return place.want(script, ports={"game": PortOrder(is_datagram)})


async def bound(place: Place, order: Order) -> int:
    """The port of one that could bind it."""
    [(address, number)] = (await place.ear.told(order.id, "placed")).values()
    assert address == ADDRESS
    assert await place.lines(order, 1) == ["bound"]
    return int(number)


async def test_a_port_that_a_foreign_program_has_is_nobodys_and_another_is_drawn(
    place: Place, foreigner: Foreigner
) -> None:
    fitting = [want(place, foreigner) for _ in range(FREE)]
    assert {await bound(place, order) for order in fitting} == foreigner.free
    late = await place.ear.end(want(place, foreigner).id)
    assert late == End("no_ports", message="no port of this node is free for it")
    number = foreigner.let_go()
    assert await bound(place, want(place, foreigner)) == number
    assert (await place.ear.end(want(place, foreigner).id)).reason == "no_ports"


async def test_a_port_of_a_run_that_ended_is_drawn_again_when_it_has_rested(
    place: Place, foreigner: Foreigner
) -> None:
    now_s = 1_000.0
    place.supervisor.places = places.Places(has_users=False, monotonic_s=lambda: now_s)
    fitting = [want(place, foreigner) for _ in range(FREE)]
    numbers = [await bound(place, order) for order in fitting]
    for order, number in itertools.islice(zip(fitting, numbers, strict=True), 2):
        place.supervisor.end(order.id, 0)
        await place.ear.end(order.id)
        await until(lambda: len(place.supervisor.runs) < FREE)
        assert (await place.ear.end(want(place, foreigner).id)).reason == "no_ports"
        await until(lambda: len(place.supervisor.runs) < FREE)
        now_s += places.REST_S
        assert await bound(place, want(place, foreigner)) == number
