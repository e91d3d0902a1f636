from __future__ import annotations

from pyservice.runtime.node_allocation import NodeCapacity
from pyservice.runtime.run_requests import Resources

NODE = Resources(1_000, 1_024)
HALF = Resources(500, 512)
NOTHING = Resources(0, 0)


def test_reservation_passes_to_the_run_at_its_start() -> None:
    capacity = NodeCapacity(NODE)
    assert capacity.reserve("one", HALF)
    assert capacity.unclaimed == HALF
    assert capacity.free == NODE, "nothing runs yet"
    capacity.claim("one", HALF)
    assert capacity.unclaimed == HALF
    capacity.give_back("one")
    assert capacity.unclaimed == HALF, "the run owns the capacity"
    assert capacity.take(HALF)
    capacity.end(HALF, was_occupied=True)
    assert (capacity.unclaimed, capacity.free) == (NODE, NODE)


def test_unused_reservation_is_released_once() -> None:
    capacity = NodeCapacity(NODE)
    assert capacity.reserve("one", HALF)
    capacity.give_back("one")
    capacity.give_back("one")
    capacity.give_back("nobody")
    assert capacity.unclaimed == NODE


def test_reservation_over_the_free_amount_is_rejected() -> None:
    capacity = NodeCapacity(NODE)
    assert capacity.reserve("one", HALF)
    assert capacity.reserve("two", HALF)
    assert not capacity.reserve("three", Resources(1, 0))
    assert not capacity.reserve("three", Resources(0, 1))
    assert capacity.unclaimed == NOTHING
    capacity.claim("four", HALF)
    assert not capacity.reserve("five", NOTHING), "another run waits already"


def test_changes_of_the_unreserved_amount_are_reported() -> None:
    capacity = NodeCapacity(NODE)
    result: list[Resources] = []
    capacity.on_change = lambda: result.append(capacity.unclaimed)
    capacity.reserve("one", HALF)
    capacity.claim("one", HALF)
    capacity.take(HALF)
    capacity.give_back("one")
    capacity.claim("two", HALF)
    capacity.end(HALF, was_occupied=True)
    capacity.end(HALF, was_occupied=False)
    assert result == [HALF, NOTHING, HALF, NODE]


def test_requested_amount_counts_reservations_and_waiting_runs() -> None:
    capacity = NodeCapacity(NODE)
    assert (capacity.total, capacity.requested) == (NODE, NOTHING)
    capacity.reserve("one", HALF)
    capacity.claim("two", NODE)
    assert capacity.requested == Resources(1_500, 1_536), "one of them waits"
    capacity.end(NODE, was_occupied=False)
    assert capacity.requested == HALF
