from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.errors import ServiceError
from pyservice.observability.metrics import TransportMetrics
from pyservice.transport.server_budgets import SMALL_BYTES, BodyBudget

LARGE = SMALL_BYTES + 1
TOTAL = 64 * SMALL_BYTES


def budget(total_bytes: int = TOTAL, largest_bytes: int = LARGE) -> BodyBudget:
    return BodyBudget(total_bytes, largest_bytes, TransportMetrics("http"))


def test_budget_smaller_than_one_body_fits_one() -> None:
    tight = budget(1, 10 * LARGE)
    tight.reserve(b"a").grow_to(10 * LARGE)
    with pytest.raises(ServiceError, match="OVERLOADED"):
        tight.reserve(b"b").grow_to(LARGE)


def test_rejected_reservation_keeps_its_earlier_bytes() -> None:
    one = budget()
    reservation = one.reserve(b"a")
    reservation.grow_to(LARGE)
    with pytest.raises(ServiceError, match="OVERLOADED"):
        reservation.grow_to(TOTAL)
    assert one.held_bytes == LARGE
    reservation.give_back()
    reservation.give_back()
    assert one.held_bytes == 0


def test_address_may_use_half_while_the_rest_is_free() -> None:
    one = budget()
    reservations = [one.reserve(b"a") for _ in range(40)]
    for reservation in reservations[:31]:
        reservation.grow_to(LARGE)
    with pytest.raises(ServiceError, match="OVERLOADED"):
        reservations[31].grow_to(LARGE)
    assert one.held_bytes == 31 * LARGE <= TOTAL // 2
    others = [one.reserve(b"b") for _ in range(7)]
    for reservation in others:
        reservation.grow_to(LARGE)
    with pytest.raises(ServiceError, match="OVERLOADED"):
        one.reserve(b"b").grow_to(LARGE)
    for reservation in (*reservations[:31], *others):
        reservation.give_back()
    assert one.held_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3 * LARGE) | st.none()), max_size=200))
def test_reserved_bytes_are_limited_and_released(steps: list[tuple[int, int | None]]) -> None:
    tight = budget(8 * LARGE)
    reservations = [tight.reserve(bytes([number % 6])) for number in range(21)]
    sizes = [0] * len(reservations)
    for number, size in steps:
        if size is None:
            reservations[number].give_back()
            sizes[number] = 0
            continue
        with suppress(ServiceError):
            reservations[number].grow_to(size)
            sizes[number] = max(sizes[number], size)
        assert tight.held_bytes == sum(sizes)
        for source in range(6):
            assert sum(sizes[source::6]) <= 4 * LARGE
        assert tight.held_bytes <= 8 * LARGE * 3 // 2
    for reservation in reservations:
        reservation.give_back()
    assert tight.held_bytes == 0
