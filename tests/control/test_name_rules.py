"""Rules of display names and name ids. The operations' tests prove that each operation applies them."""

from __future__ import annotations

import pytest

from pyservice.control.name_rules import (
    derived_name_id,
    display_name_problems,
    name_id_problems,
    with_suffix,
)

UUID = "0192f000-0000-7000-8000-0000000000ff"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(("x" * 128, []), ("é x", []), ("日本", []), ("a-b c.d", []), ("e\u0301", [])),
        *(
            ("", ["too-short"]),
            ("x" * 129, ["too-long"]),
            ("x" * 129 + " ", ["too-long", "invalid"]),
        ),
        *((text, ["invalid"]) for text in (" x", "x ", "x  y", "x\ny", "x\ty", "x\x7fy", "x\x85y")),
    ],
)
def test_display_name(text: str, words: list[str]) -> None:
    paths = [problem.path for problem in display_name_problems(text, "display_name")]
    assert paths == [("display_name", word) for word in words]


@pytest.mark.parametrize("longest", [20, 40])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            ("x", []),
            ("a-b-9", []),
            ("{longest}", []),
            ("", ["too-short"]),
            ("{longer}", ["too-long"]),
        ),
        *((text, ["invalid"]) for text in ("-x", "x-", "x--y", "X", "x_y", "x.y", "é", "x y")),
    ],
)
def test_name_id(text: str, words: list[str], longest: int) -> None:
    text = text.format(longest="x" * longest, longer="x" * (longest + 1))
    paths = [problem.path for problem in name_id_problems(text, longest, "name_id")]
    assert paths == [("name_id", word) for word in words]


def test_uuid_is_no_name_id() -> None:
    assert [one.path for one in name_id_problems(UUID, 40, "name_id")] == [("name_id", "invalid")]


@pytest.mark.parametrize(
    ("display_name", "name"),
    [
        ("Café: der  Arena!", "cafe-der-arena"),
        ("日本", "game"),
        ("9" * 41, "9" * 40),
        ("a" * 39 + " b", "a" * 39),
        (UUID, "game"),
    ],
)
def test_name_id_is_derived_from_the_display_name(display_name: str, name: str) -> None:
    assert derived_name_id(display_name, 40) == name


def test_suffix_keeps_the_length_limit() -> None:
    assert with_suffix("x" * 40, 2, 40) == "x" * 38 + "-2"
    assert with_suffix("x" * 37 + "-yy", 12, 40) == "x" * 37 + "-12"
