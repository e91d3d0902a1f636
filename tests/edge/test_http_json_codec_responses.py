from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.schema.methods import METHODS, Method

BY_SLUG: dict[str, Method] = {method.slug: method for method in METHODS.values()}
ENCODERS = {slug: http_json_codec.encoder(method) for slug, method in BY_SLUG.items()}

Decode = Callable[..., Any]
Refusal = Callable[..., ServiceError]

LOBBY = "01a1f816-c6c0-45cf-aea6-491dc6e0571b"


def paths(error: ServiceError) -> set[tuple[str, ...]]:
    return {problem.path for problem in error.errors}


@pytest.mark.parametrize("game", ["a", "my-game", LOBBY, "a" * 40])
def test_game_is_named_by_id_or_name(decode: Decode, game: str) -> None:
    path = {"game_id": game, "lobby_id": LOBBY}
    assert decode("detach", path=path).game_id == game


@pytest.mark.parametrize("game", ["A", "a_b", "-a", "a--b", "a" * 41, LOBBY.upper(), "é", "a\n"])
def test_malformed_game_name_is_an_invalid_id(refusal: Refusal, game: str) -> None:
    error = refusal("detach", path={"game_id": game, "lobby_id": LOBBY})
    assert error.code == "ID_INVALID"
    assert {path[0] for path in paths(error)} == {"game_id"}


@pytest.mark.parametrize("namespace", ["a" * 21, "a" * 36, LOBBY[:-1], LOBBY + "0"])
def test_namespace_is_named_by_short_name_or_id(
    decode: Decode, refusal: Refusal, namespace: str
) -> None:
    body = b'{"game_mode":"a"}'
    error = refusal("attach", body, path={"game_id": "g", "namespace_id": namespace})
    assert error.code == "ID_INVALID"
    assert decode("attach", body, path={"game_id": "g", "namespace_id": LOBBY})
    assert decode("attach", body, path={"game_id": "g", "namespace_id": "a" * 20})


def test_lobby_in_a_path_is_named_by_id_only(refusal: Refusal) -> None:
    assert refusal("get_state", path={"lobby_id": "lobby-1"}).code == "ID_INVALID"


def test_path_problems_come_before_body_problems(refusal: Refusal) -> None:
    error = refusal("attach", b'{"party":1}', path={"game_id": "G", "namespace_id": "n"})
    assert error.code == "ID_INVALID"
    assert paths(error) == {
        ("game_id", "invalid"),
        ("party", "unknown-field"),
        ("game_mode", "required"),
    }
    unreadable = refusal("attach", b"{", path={"game_id": "G", "namespace_id": "n"})
    assert paths(unreadable) == {("game_id", "invalid"), ("not-json",)}


@pytest.mark.parametrize(("query", "expected"), [(b"", None), (b"include_state=true", True),
    (b"include_state=false", False), (b"include%5Fstate=tr%75e&", True)])  # fmt: skip
def test_parameter_is_decoded_by_its_field_type(
    decode: Decode, query: bytes, expected: bool | None
) -> None:
    request = decode("list", query=query)
    assert (request.include_state if request.HasField("include_state") else None) is expected


@pytest.mark.parametrize(
    ("query", "path"),
    [
        (b"include_state=1", ("include_state", "wrong-type")),
        (b"include_state=True", ("include_state", "wrong-type")),
        (b"include_state", ("include_state", "wrong-type")),
        (b"include_state=true&include_state=true", ("include_state", "not-unique")),
        (b"all=1", ("all", "unknown-parameter")),
        (b"=1", ("", "unknown-parameter")),
        (b"include_state=%ff", ("include_state", "invalid")),
        (b"include_state=%zz", ("include_state", "invalid")),
        (b"include_state=true%", ("include_state", "invalid")),
        (b"include_state=%7", ("include_state", "invalid")),
        (b"include_state=%%74rue", ("include_state", "invalid")),
        (b"include_state=%C3", ("include_state", "invalid")),
        (b"include_state=%ED%A0%80", ("include_state", "invalid")),
        (b"include_state=\xc3\xa9", ("include_state", "invalid")),
        (b"include%5fstate=%zz", ("include_state", "invalid")),
        (b"all=%zz", ("all", "unknown-parameter")),
        (b"%ff=1", ("%ff", "invalid")),
        (b"include_state%=true", ("include_state%", "invalid")),
        (b"\xc3\xa9=1", ("\\xc3\\xa9", "invalid")),
    ],
)
def test_unknown_or_malformed_parameter_is_rejected(
    refusal: Refusal, query: bytes, path: tuple[str, ...]
) -> None:
    error = refusal("list", query=query)
    assert error.code == "QUERY_INVALID"
    assert paths(error) == {path}


def test_every_malformed_parameter_is_reported_by_name(refusal: Refusal) -> None:
    error = refusal("list", query=b"include_state=%zz&a=%ff&%=%&include_state=true")
    assert [problem.path for problem in error.errors] == [
        ("include_state", "invalid"),
        ("a", "unknown-parameter"),
        ("%", "invalid"),
        ("include_state", "not-unique"),
    ]


def test_text_parameter_accepts_any_percent_encoding(decode: Decode) -> None:
    path = {"group_id": LOBBY}
    for query, text in (
        (b"watch_index=a+b%2Bc%25zz", "a b+c%zz"),
        (b"watch_index=%C3%A9=&", "\u00e9="),
        (b"&&watch_index=", ""),
    ):
        assert decode("get_billing", path=path, query=query).watch_index == text


@pytest.mark.parametrize("slug", sorted(set(BY_SLUG) - {"list"}))
def test_other_operations_accept_no_parameter(refusal: Refusal, slug: str) -> None:
    path = {
        name: "0" * 31 + "1" if name == "ray_id" else LOBBY for name in BY_SLUG[slug].path_fields
    }
    error = refusal(slug, query=b"player_token=x", path=path)
    assert error.code == "QUERY_INVALID"
    assert ("player_token", "unknown-parameter") in paths(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("600000", 600_000),
        ("+1", "wrong-type"),
        ("-1", "wrong-type"),
        ("1.0", "wrong-type"),
        ("", "wrong-type"),
        ("٣", "wrong-type"),
        ("4294967296", "too-high"),
        ("9" * 5000, "too-high"),
    ],
)
def test_number_in_a_query_is_decimal_digits(text: str, expected: int | str) -> None:
    # No current operation has a number in this position.
    method = replace(BY_SLUG["disconnected"], body_field="", http_method="GET")
    request, unread = http_json_codec.decoder(method)(b"", b"hold_ms=" + quote(text).encode(), {})
    if isinstance(expected, int):
        assert request == matchmaker_pb2.PlayerDisconnectedRequest(hold_ms=expected)
    else:
        assert [problem.path for problem in unread.in_query] == [("hold_ms", expected)]


def test_body_of_an_operation_without_one_is_ignored(decode: Decode) -> None:
    assert decode("regions", b"{") == matchmaker_pb2.ListRegionsRequest()


@pytest.mark.parametrize("slug", ["connected", "disconnected", "ready", "closed", "heartbeat"])
def test_empty_response_is_an_empty_object(slug: str) -> None:
    assert ENCODERS[slug](BY_SLUG[slug].response()) == b"{}"


def test_lobby_state_is_returned_unwrapped() -> None:
    encode = ENCODERS["get_state"]
    text = b'{ "n": 123456789012345678901234567890 }'
    assert encode(matchmaker_pb2.GetLobbyStateResponse(state=text)) == text
    assert encode(matchmaker_pb2.GetLobbyStateResponse()) == b"null"


def test_detach_response_is_false_when_nothing_was_removed() -> None:
    assert ENCODERS["detach"](matchmaker_pb2.DetachLobbyResponse()) == b'{"did_remove":false}'


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from([field.name for method in BY_SLUG.values()
                         for field in method.request.DESCRIPTOR.fields]) | st.text(max_size=4),
        inner,
        max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(sorted(BY_SLUG)), st.binary(max_size=64), st.binary(max_size=32))
def test_arbitrary_bytes_are_decoded_or_rejected(
    decode: Decode, slug: str, body: bytes, query: bytes
) -> None:
    _decode_anything(decode, slug, body, query)


@given(st.sampled_from(sorted(BY_SLUG)), _json_values)
def test_arbitrary_json_is_decoded_or_rejected(decode: Decode, slug: str, value: Any) -> None:
    try:
        body = json.dumps(value).encode()
    except UnicodeEncodeError:
        return
    _decode_anything(decode, slug, body, b"")


def _decode_anything(decode: Decode, slug: str, body: bytes, query: bytes) -> None:
    path = {
        name: "0" * 31 + "1" if name == "ray_id" else LOBBY for name in BY_SLUG[slug].path_fields
    }
    refused: ServiceError | None = None
    try:
        decode(slug, body, query, path)
    except ServiceError as error:
        refused = error
    if refused is not None:
        assert refused.code in {"BODY_INVALID", "QUERY_INVALID", "ID_INVALID"}
        assert refused.errors
