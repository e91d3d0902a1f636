import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.pb.errors import JSON_DEPTH_MAX
from pyservice.schema.json_text import JsonTextError, member_texts, parse

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"{", b"{}x", b"{} {}", b'{"a":1,}', b"NaN", b"[Infinity]", b"1e999", b"01"),
        *(b"'a'", b'"\xff"', b'"\\ud800"', b"\xef\xbb\xbf{}", b"// a\n{}"),
    ],
)
def test_invalid_json_or_utf_8_is_rejected(text: bytes) -> None:
    with pytest.raises(JsonTextError) as refused:
        parse(text)
    assert refused.value.word == "not-json"
    assert "line" in refused.value.reason


def nested(levels: int) -> bytes:
    pairs, odd = divmod(levels, 2)
    return b'{"a":[' * pairs + b"[" * odd + b"]" * odd + b"]}" * pairs


@pytest.mark.parametrize("levels", [1, JSON_DEPTH_MAX - 1, JSON_DEPTH_MAX])
def test_nesting_up_to_the_limit_is_accepted(levels: int) -> None:
    assert parse(nested(levels)) == json.loads(nested(levels))


@pytest.mark.parametrize("levels", [JSON_DEPTH_MAX + 1, 1000, 100_000])
def test_nesting_over_the_limit_is_rejected(levels: int) -> None:
    for text in (nested(levels), b"[[]," + nested(levels - 1) + b"]"):
        with pytest.raises(JsonTextError) as refused:
            parse(text)
        assert refused.value.word == "too-deep"


def test_adjacent_or_quoted_brackets_are_not_nested() -> None:
    assert len(parse(b"[" + b"[]," * 10_000 + b"[]]")) == 10_001
    assert parse(b'["' + b"[{" * 500 + b'"]') == ["[{" * 500]


def test_last_duplicate_member_wins() -> None:
    text = b'{"a": 1, "b": 2, "a": {"c": 3}}'
    assert parse(text) == {"a": {"c": 3}, "b": 2}
    assert member_texts(text) == {"a": b'{"c": 3}', "b": b"2"}


def test_member_text_is_kept_byte_for_byte() -> None:
    big = b"1" * 300
    text = b' {\n"n" :\t' + big + b' , "\\u0061\\"": [1.50, "\\u00e9" ] ,"e":{ }}\r\n'
    assert parse(text).keys() == {"n", 'a"', "e"}
    assert member_texts(text) == {"n": big, 'a"': b'[1.50, "\\u00e9" ]', "e": b"{ }"}


def test_empty_object_has_no_members() -> None:
    assert member_texts(b" { } ") == {}


@given(st.dictionaries(st.text(), _values, max_size=5), st.sampled_from([None, 2]))
def test_member_texts_parse_to_the_members(value: dict[str, object], indent: int | None) -> None:
    for ascii_only in (True, False):
        try:
            text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        texts = member_texts(text)
        assert {name: json.loads(part) for name, part in texts.items()} == json.loads(text)
