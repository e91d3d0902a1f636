"""Growth, limit and reset of back-off delays."""

from __future__ import annotations

from pyservice.concurrency.backoff import Backoff, doubling


def test_last_delay_repeats_until_reset() -> None:
    backoff = Backoff((0.1, 0.5, 2.0))
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.5, 2.0, 2.0, 2.0]
    assert backoff.failures == 5
    backoff.reset()
    assert backoff.failures == 0
    assert [backoff.next_s(2), backoff.next_s(9)] == [0.5, 2.0]


def test_doubling_ends_at_the_longest_delay() -> None:
    assert doubling(0.1, 2.0) == (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)
    assert doubling(1.0, 4.0) == (1.0, 2.0, 4.0)
    assert doubling(0.5, 0.5) == (0.5,)
