from __future__ import annotations

import pytest

from pyservice.cdn.file_responses import (
    Unsatisfiable,
    http_date,
    is_unchanged,
    last_modified_time,
    wanted_range,
)

MODIFIED_S = 1_700_000_000.5
DATE = http_date(MODIFIED_S).encode()
EARLIER = http_date(MODIFIED_S - 10).encode()
LATER = http_date(MODIFIED_S + 10).encode()


@pytest.mark.parametrize(
    ("headers", "is_same"),
    [
        ({}, False),
        ({b"if-none-match": b'"tag"'}, True),
        ({b"if-none-match": b'W/"tag"'}, True),
        ({b"if-none-match": b'"tag-gzip"'}, True),
        ({b"if-none-match": b'"a", "tag"'}, True),
        ({b"if-none-match": b"*"}, True),
        ({b"if-none-match": b'"other"'}, False),
        ({b"if-none-match": b"tag"}, False),
        ({b"if-modified-since": DATE}, True),
        ({b"if-modified-since": EARLIER}, False),
        ({b"if-modified-since": b"yesterday"}, False),
        ({b"if-none-match": b'"other"', b"if-modified-since": DATE}, False),
    ],
)
def test_unchanged_file_returns_304(headers: dict[bytes, bytes], is_same: bool) -> None:
    assert is_unchanged(headers, "tag", MODIFIED_S) is is_same


def test_date_of_a_rolled_back_version_returns_the_current_file() -> None:
    assert not is_unchanged({b"if-modified-since": LATER}, "tag", MODIFIED_S)


def test_last_modified_is_the_next_whole_second_after_it_has_passed() -> None:
    assert http_date(MODIFIED_S) == "Tue, 14 Nov 2023 22:13:21 GMT"
    assert http_date(1_700_000_001.0) == "Tue, 14 Nov 2023 22:13:21 GMT"
    assert last_modified_time(MODIFIED_S, MODIFIED_S + 0.4) is None
    assert last_modified_time(MODIFIED_S, MODIFIED_S + 0.5) == MODIFIED_S
    assert not is_unchanged({b"if-modified-since": DATE}, "tag", None)


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        (b"bytes=0-0", (0, 1)),
        (b"bytes=0-9", (0, 10)),
        (b"bytes=3-", (3, 10)),
        (b"bytes=3-99", (3, 10)),
        (b"bytes=-3", (7, 10)),
        (b"bytes=-99", (0, 10)),
        (b"bytes=5-3", None),
        (b"bytes=-", None),
        (b"bytes=0-1,3-4", None),
        (b"lines=0-1", None),
        (b"bytes=a-b", None),
        (b"bytes=" + b"9" * 40 + b"-", None),
        (b"", None),
    ],
)
def test_range_returns_its_bytes_or_the_whole_file(
    range_: bytes, expected: tuple[int, int] | None
) -> None:
    assert wanted_range({b"range": range_}, 10, "tag") == expected


@pytest.mark.parametrize(
    ("range_", "length"),
    [(b"bytes=10-", 10), (b"bytes=-0", 10), (b"bytes=0-", 0), (b"bytes=-5", 0)],
)
def test_range_beyond_the_file_returns_416(range_: bytes, length: int) -> None:
    with pytest.raises(Unsatisfiable):
        wanted_range({b"range": range_}, length, "tag")


@pytest.mark.parametrize(
    ("condition", "is_partial"),
    [
        (b'"tag"', True),
        (b'W/"tag"', False),
        (b'"tag-gzip"', False),
        (b'"old"', False),
        # Two versions may have the same second, so a date cannot validate a range.
        (DATE, False),
        (EARLIER, False),
        (LATER, False),
        (b"nonsense", False),
    ],
)
def test_if_range_of_a_changed_file_returns_the_whole_file(
    condition: bytes, is_partial: bool
) -> None:
    headers = {b"range": b"bytes=0-1", b"if-range": condition}
    assert (wanted_range(headers, 10, "tag") is not None) is is_partial
