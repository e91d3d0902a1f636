from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
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
ATTACH_PATH = {"game_id": "arena", "namespace_id": "prod"}


def paths(error: ServiceError) -> set[tuple[str, ...]]:
    return {problem.path for problem in error.errors}


def test_find_body_is_decoded_completely(decode: Decode) -> None:
    body = {
        "game_modes": ["duel", "Team_2"],
        "regions": ["local", "eu-1"],
        "tags": {"map": "ice", "é": ""},
        "max_players": 8,
        "prevent_auto_create_lobby": False,
        "captcha": {"captcha_a": {"client_response": "yes"}},
        "verification_data": {"user": [1, {"a": None}]},
        "party_size": 64,
        "client_address": "2001:db8::1",
    }
    text = orjson.dumps(body)
    assert decode("find", text) == matchmaker_pb2.FindLobbyRequest(
        game_modes=["duel", "Team_2"],
        regions=["local", "eu-1"],
        tags={"map": "ice", "é": ""},
        max_players=8,
        prevent_auto_create_lobby=False,
        captcha={"captcha_a": {"client_response": "yes"}},
        verification_data=orjson.dumps(body["verification_data"]),
        party_size=64,
        client_address="2001:db8::1",
    )


def test_empty_body_is_an_empty_object(decode: Decode, refusal: Refusal) -> None:
    assert decode("ready") == matchmaker_pb2.LobbyReadyRequest()
    assert paths(refusal("connected")) == {("player_token", "required")}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b"{", ("not-json",)),
        (b"[" * 65 + b"]" * 65, ("too-deep",)),
        (b"[]", ("wrong-type",)),
    ],
)
def test_non_object_body_is_one_problem(
    refusal: Refusal, body: bytes, path: tuple[str, ...]
) -> None:
    error = refusal("connected", body)
    assert error.code == "BODY_INVALID"
    assert paths(error) == {path}


def test_all_problems_of_a_body_are_reported(refusal: Refusal) -> None:
    error = refusal(
        "find",
        orjson.dumps(
            {
                "game_modes": ["a b", 1, "ok", "ok"],
                "regions": ["EU"],
                "tags": {"": "x", "n" * 129: "y", "big": "z" * 513, "odd": 1},
                "max_players": 0,
                "prevent_auto_create_lobby": "no",
                "captcha": {"captcha_a": {}, "captcha_b": {"client_response": 1}},
                "verification_data": [1],
                "party_size": 65,
                "client_address": "localhost",
            }
        ),
    )
    assert error.code == "BODY_INVALID"
    assert paths(error) == {
        ("game_modes", "0", "invalid"),
        ("game_modes", "1", "wrong-type"),
        ("regions", "0", "invalid"),
        ("tags", "", "too-short"),
        ("tags", "n" * 129, "too-long"),
        ("tags", "big", "too-long"),
        ("tags", "odd", "wrong-type"),
        ("max_players", "too-low"),
        ("prevent_auto_create_lobby", "wrong-type"),
        ("captcha", "captcha_b", "not-allowed"),
        ("captcha", "captcha_b", "client_response", "wrong-type"),
        ("verification_data", "wrong-type"),
        ("party_size", "too-high"),
        ("client_address", "invalid"),
    }


def test_false_differs_from_absent(decode: Decode, refusal: Refusal) -> None:
    assert decode("closed", b'{"is_closed":false}').is_closed is False
    assert paths(refusal("closed", b"{}")) == {("is_closed", "required")}


def test_cloud_operations_reject_unknown_fields(refusal: Refusal) -> None:
    body = b'{"game_mode":"a","ports":{"ws":{"address":"h","port":1,"tls":true}},"region_id":"x"}'
    error = refusal("attach", body, path=ATTACH_PATH)
    assert error.code == "BODY_INVALID"
    assert paths(error) == {("region_id", "unknown-field"), ("ports", "ws", "tls", "unknown-field")}


def test_verification_data_keeps_its_text(decode: Decode) -> None:
    data = b'{ "id" : 123456789012345678901234567890, "f": 1.50, "s": "\\u00e9" }'
    body = b'{"game_modes": ["a"], "verification_data" :' + data + b" }"
    assert decode("find", body).verification_data == data


def test_verification_data_null_is_absent(decode: Decode) -> None:
    body = b'{"game_modes":["a"],"verification_data":null}'
    assert not decode("find", body).HasField("verification_data")


def test_nested_raw_json_keeps_its_text(decode: Decode) -> None:
    data = b'{ "id" : 123456789012345678901234567890,"s":"}\\u00e9" , "id": {} }'
    body = (
        b' {"config" : {"kv":0},\n"display_name":"kv", "config": { "cdn": {},"engine":\t'
        b'{"unity": {"x":1}, "unreal":{"game_module":"kv"} ,"unity" : ' + data + b" } ,"
        b'"kv":' + data + b',"scripts":{"kv":"{}"}} }'
    )
    config = decode("create_version", body, path={"game_id": "arena"}).config
    assert config.kv == data
    assert config.engine.unity == data
    assert not config.engine.HasField("godot")
    assert config.scripts.entries["kv"] == "{}"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (b'{"kv":[{}]}', ("config", "kv", "wrong-type")),
        (b'{"kv":"{}"}', ("config", "kv", "wrong-type")),
        (b'{"engine":{"godot":1,"html5":null}}', ("config", "engine", "godot", "wrong-type")),
        (b'{"engine":[{"godot":1}]}', ("config", "engine", "wrong-type")),
        (b'[{"kv":1}]', ("config", "wrong-type")),
        (b'{"kv":' + b"[" * 63 + b"]" * 63 + b"}", ("too-deep",)),
    ],
)
def test_nested_non_object_is_reported_with_its_path(
    refusal: Refusal, config: bytes, path: tuple[str, ...]
) -> None:
    body = b'{"display_name":"1","config":' + config + b"}"
    assert paths(refusal("create_version", body, path={"game_id": "arena"})) == {path}


def test_object_of_unknown_names_is_rejected_without_reading_its_text() -> None:
    method = METHODS["hosting.v1.Versions.ValidateVersion"]
    names = b"".join(b',"n%d":1' % number for number in range(300))
    for count, is_kept in ((len(names), False), (0, True)):
        body = b'{"display_name":"a","config":{"scripts":{},"kv":{"a": 1.0}%b}}' % names[:count]
        message, unread = http_json_codec.decoder(method)(body, b"", {"game_id": "arena"})
        assert (message.config.kv == b'{"a": 1.0}') is is_kept  # type: ignore[attr-defined]
        assert bool(unread.in_body) is not is_kept


def test_raw_json_in_a_list_fails_the_start() -> None:
    list_method = METHODS["hosting.v1.Matchmaker.ListLobbies"]
    answer_as_request = replace(list_method, request=list_method.response, body_field="*")
    with pytest.raises(TypeError, match=r"ListLobbiesResponse\.lobbies: raw JSON in a list"):
        http_json_codec.decoder(answer_as_request)


@pytest.mark.parametrize(
    "state", [b"", b"null", b' {"a": 1e2} ', b'"x"', b"123456789012345678901234567890", b"[1,\n2]"]
)
def test_lobby_state_is_any_json_value_byte_for_byte(decode: Decode, state: bytes) -> None:
    assert decode("set_state", state).state == state


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


def path_of(slug: str) -> dict[str, str]:
    names = BY_SLUG[slug].path_fields
    return {name: "0" * 31 + "1" if name == "ray_id" else LOBBY for name in names}


@pytest.mark.parametrize("slug", sorted(set(BY_SLUG) - {"list"}))
def test_other_operations_accept_no_parameter(refusal: Refusal, slug: str) -> None:
    path = path_of(slug)
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
    path = path_of(slug)
    refused: ServiceError | None = None
    try:
        decode(slug, body, query, path)
    except ServiceError as error:
        refused = error
    if refused is not None:
        assert refused.code in {"BODY_INVALID", "QUERY_INVALID", "ID_INVALID"}
        assert refused.errors
