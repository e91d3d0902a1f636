from __future__ import annotations

from pyservice.calls import WaitForChange
from pyservice.front import internal_headers


def test_wait_header_has_the_position_and_the_topics() -> None:
    wait = WaitForChange(("game:1", "token:2"), 17, "ab12")
    assert internal_headers.wait_text(wait) == "ab12.17 game:1,token:2"
