from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.schema.methods import METHODS

Decode = Callable[..., Any]
Refusal = Callable[..., ServiceError]

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
