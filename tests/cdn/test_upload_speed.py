from __future__ import annotations

import pytest

from pyservice.cdn.uploads import LEAST_S, WINDOW_BYTES, WINDOW_S, UploadPace

HOUR_S = 3600
GIB = 1 << 30
POLL_INTERVAL_S = 5


def ends_after(
    pace: UploadPace, length: int, rate: float, *, most_s: int = 100 * HOUR_S
) -> int | None:
    """Returns the second in which a client with this constant speed is rejected as too slow, or
    None.
    """
    for now_s in range(POLL_INTERVAL_S, most_s, POLL_INTERVAL_S):
        missing = length - int(rate * now_s)
        if missing <= 0:
            return None
        if not pace.is_fast_enough(now_s, missing):
            return now_s
    raise AssertionError("the upload neither finished nor failed")


def test_largest_build_at_minimum_speed_ends_before_its_url() -> None:
    slowest = WINDOW_BYTES / WINDOW_S + 100
    over_s = ends_after(UploadPace(8 * GIB, 0, HOUR_S), 8 * GIB, slowest)
    assert over_s is not None
    assert over_s <= HOUR_S / 3


@pytest.mark.parametrize(
    ("length", "good_s"), [(8 * GIB, HOUR_S), (64 << 20, 6 * HOUR_S), (1 << 20, LEAST_S), (1, 1)]
)
def test_fast_enough_upload_continues(length: int, good_s: float) -> None:
    rate = max(length / max(good_s, LEAST_S) * 1.01, WINDOW_BYTES / WINDOW_S * 1.2)
    assert ends_after(UploadPace(length, 0, good_s), length, rate) is None


@pytest.mark.parametrize(("length", "good_s"), [(8 * GIB, HOUR_S), (512 << 20, 6 * HOUR_S)])
def test_upload_too_slow_for_its_url_ends_early(length: int, good_s: float) -> None:
    over_s = ends_after(UploadPace(length, 0, good_s), length, length / good_s * 0.9)
    assert over_s is not None
    assert good_s / 4 < over_s <= good_s


def test_stalled_upload_ends_after_one_window() -> None:
    assert ends_after(UploadPace(GIB, 0, HOUR_S), GIB, 100) == WINDOW_S


def test_small_rest_must_arrive_within_one_window() -> None:
    pace = UploadPace(100, 0, HOUR_S)
    assert pace.is_fast_enough(WINDOW_S - 1, 100)
    assert not pace.is_fast_enough(WINDOW_S, 99)


def test_upload_may_begin_late_in_the_life_of_its_url() -> None:
    pace = UploadPace(GIB, 0, 1)
    assert pace.is_fast_enough(WINDOW_S, GIB - WINDOW_BYTES)


def test_disk_time_does_not_count_as_client_time() -> None:
    pace = UploadPace(GIB, 0, HOUR_S)
    for now_s in range(POLL_INTERVAL_S, 10 * HOUR_S, POLL_INTERVAL_S):
        pace.restart_window(now_s)
    missing = GIB
    for now_s in range(10 * HOUR_S, 10 * HOUR_S + HOUR_S // 5, POLL_INTERVAL_S):
        missing -= WINDOW_BYTES
        assert pace.is_fast_enough(now_s, missing)
