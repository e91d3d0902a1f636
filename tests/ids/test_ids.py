from __future__ import annotations

import threading
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice import ids


@given(st.uuids())
def test_id_round_trips_to_bytes(value: UUID) -> None:
    text = str(value)
    assert ids.is_uuid(text)
    assert ids.parse_uuid(text) == value.bytes
    assert ids.format_uuid(value.bytes) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01A1F816-C6C0-75CF-AEA6-491DC6E0571B",
        "01a1f816c6c075cfaea6491dc6e0571b",
        "{01a1f816-c6c0-75cf-aea6-491dc6e0571b}",
        "01a1f816-c6c0-75cf-aea6-491dc6e0571b\n",
        "01a1f816-c6c0-75cf-aea6-491dc6e0571",
        "01a1f816-c6c0-75cf-aea6-491dc6e0571٠",
        "01a1f816-c6c0-75cf-aea6-491dc6e0571g",
    ],
)
def test_other_spellings_are_rejected(text: str) -> None:
    assert not ids.is_uuid(text)
    assert ids.parse_uuid(text) is None


@pytest.mark.parametrize("text", ["a", "0", "prod", "my-game-2", "a" * 20])
def test_name_id_is_letters_digits_and_single_dashes(text: str) -> None:
    assert ids.is_name_id(text, ids.NAMESPACE_NAME_MAX)


@pytest.mark.parametrize(
    "text", ["", "-", "-a", "a-", "a--b", "A", "a_b", "a b", "é", "a\n", "a" * 21, "٠"]
)
def test_invalid_name_ids_are_rejected(text: str) -> None:
    assert not ids.is_name_id(text, ids.NAMESPACE_NAME_MAX)


def test_name_in_uuid_form_is_no_name_id() -> None:
    text = "01a1f816-c6c0-75cf-aea6-491dc6e0571b"
    assert len(text) <= ids.GAME_NAME_MAX
    assert not ids.is_name_id(text, ids.GAME_NAME_MAX)


def test_record_ids_are_uuid_v7_with_milliseconds() -> None:
    maker = ids.RecordIds(now_ns=lambda: 1_700_000_000_123_456_789)
    value = UUID(maker.new())
    assert value.version == 7
    assert value.variant == "specified in RFC 4122"
    assert value.int >> 80 == 1_700_000_000_123


def test_record_ids_increase_when_the_clock_stops_or_steps_back() -> None:
    times = iter([5_000_000] * 5000 + [1_000_000] * 10 + [9_000_000_000])
    maker = ids.RecordIds(now_ns=lambda: next(times), random_bits=lambda _: 0)
    record_ids = [maker.new() for _ in range(5011)]
    assert record_ids == sorted(set(record_ids))
    assert UUID(record_ids[-1]).int >> 80 == 9000


def test_record_ids_are_unique_across_threads() -> None:
    maker = ids.RecordIds(now_ns=lambda: 1_000_000, random_bits=lambda _: 0)
    record_ids: list[str] = []

    def make() -> None:
        record_ids.extend([maker.new() for _ in range(500)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(record_ids)) == 2000
