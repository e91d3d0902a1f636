"""Conditions and ranges, as RFC 9110 has them."""

from __future__ import annotations

import pytest

from pyservice.cdn.conditions import Unsatisfiable, http_date, is_unchanged, wanted_range

MODIFIED_S = 1_700_000_000.5
DATE = http_date(MODIFIED_S).encode()
EARLIER = http_date(MODIFIED_S - 10).encode()


@pytest.mark.parametrize(
    ("asked", "is_same"),
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
def test_a_file_that_the_client_has_is_not_sent_again(
    asked: dict[bytes, bytes], is_same: bool
) -> None:
    assert is_unchanged(asked, "tag", MODIFIED_S) is is_same


@pytest.mark.parametrize(
    ("range_", "wanted"),
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
def test_a_range_is_the_bytes_it_says_or_the_whole(
    range_: bytes, wanted: tuple[int, int] | None
) -> None:
    assert wanted_range({b"range": range_}, 10, "tag", MODIFIED_S) == wanted


@pytest.mark.parametrize(
    ("range_", "length"),
    [(b"bytes=10-", 10), (b"bytes=-0", 10), (b"bytes=0-", 0), (b"bytes=-5", 0)],
)
def test_a_range_without_a_byte_of_the_file_cannot_be_satisfied(range_: bytes, length: int) -> None:
    with pytest.raises(Unsatisfiable):
        wanted_range({b"range": range_}, length, "tag", MODIFIED_S)


@pytest.mark.parametrize(
    ("condition", "is_partial"),
    [
        (b'"tag"', True),
        (b'W/"tag"', False),
        (b'"tag-gzip"', False),
        (b'"old"', False),
        (DATE, True),
        (EARLIER, False),
        (b"nonsense", False),
    ],
)
def test_if_range_gives_the_whole_file_when_it_is_another_now(
    condition: bytes, is_partial: bool
) -> None:
    asked = {b"range": b"bytes=0-1", b"if-range": condition}
    assert (wanted_range(asked, 10, "tag", MODIFIED_S) is not None) is is_partial
