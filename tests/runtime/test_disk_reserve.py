from __future__ import annotations

from pyservice.runtime.node_allocation import NodeCapacity
from pyservice.runtime.run_requests import Resources

NODE = Resources(1_000, 1_024)
HALF = Resources(500, 512)
NOTHING = Resources(0, 0)


def test_reservation_passes_to_the_run_at_its_start() -> None:
    room = NodeCapacity(NODE)
    assert room.reserve("one", HALF)
    assert room.unclaimed == HALF
    assert room.free == NODE, "nothing runs yet"
    room.claim("one", HALF)
    assert room.unclaimed == HALF
    room.give_back("one")
    assert room.unclaimed == HALF, "it is the run's"
    assert room.take(HALF)
    room.end(HALF, was_held=True)
    assert (room.unclaimed, room.free) == (NODE, NODE)


def test_unused_reservation_is_released_once() -> None:
    room = NodeCapacity(NODE)
    assert room.reserve("one", HALF)
    room.give_back("one")
    room.give_back("one")
    room.give_back("nobody")
    assert room.unclaimed == NODE


def test_reservation_over_the_free_amount_is_rejected() -> None:
    room = NodeCapacity(NODE)
    assert room.reserve("one", HALF)
    assert room.reserve("two", HALF)
    assert not room.reserve("three", Resources(1, 0))
    assert not room.reserve("three", Resources(0, 1))
    assert room.unclaimed == NOTHING
    room.claim("four", HALF)
    assert not room.reserve("five", NOTHING), "somebody waits already"


def test_changes_of_the_unreserved_amount_are_reported() -> None:
    room = NodeCapacity(NODE)
    told: list[Resources] = []
    room.changed = lambda: told.append(room.unclaimed)
    room.reserve("one", HALF)
    room.claim("one", HALF)
    room.take(HALF)
    room.give_back("one")
    room.claim("two", HALF)
    room.end(HALF, was_held=True)
    room.end(HALF, was_held=False)
    assert told == [HALF, NOTHING, HALF, NODE]
