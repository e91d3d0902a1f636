from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.calls import WaitForChange
from pyservice.transport import request_headers

_WORDS = st.text(st.characters(codec="ascii", exclude_characters=" ,\r\n\t"), min_size=1)


@given(
    topics=st.lists(_WORDS, min_size=1, max_size=4),
    sequence=st.integers(0, 2**63),
    run=st.text("0123456789abcdef", min_size=1),
)
def test_wait_header_round_trips(topics: list[str], sequence: int, run: str) -> None:
    park = WaitForChange(tuple(topics), sequence, run)
    assert request_headers.read_wait(request_headers.wait_text(park)) == park


@pytest.mark.parametrize("text", ["", "r", "r.x a", "a,b"])
def test_invalid_wait_header_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        request_headers.read_wait(text)
