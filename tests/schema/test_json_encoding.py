from typing import Any

import orjson
import pytest

from pyservice.pb.hosting.v1 import lobby_pb2, matchmaker_pb2
from pyservice.schema.json_decoding import compile_decoder
from pyservice.schema.json_encoding import compile_encoder
from pyservice.schema.methods import descriptor_of


@pytest.fixture
def empty(shape: type[Any]) -> dict[str, Any]:
    written: dict[str, Any] = compile_encoder(shape.DESCRIPTOR)(shape())
    return written


def test_presence_decides_what_an_empty_message_includes(
    empty: dict[str, Any], shape: type[Any]
) -> None:
    included: dict[str, Any] = {"text": "", "numbers": [], "by_name": {}, "nullable": None}
    assert {name: empty[name] for name in included} == included
    omitted = {"optional_text", "flag", "large", "inner", "made_ts", "listed", "quiet"}
    assert not omitted & set(empty)
    fields = {"flag": False, "large": 0, "optional_text": "", "quiet": ["a"]}
    written = compile_encoder(shape.DESCRIPTOR)(shape(**fields))
    assert {name: written[name] for name in fields} == fields


def test_64_bit_integers_are_exact_numbers(shape: type[Any]) -> None:
    written = compile_encoder(shape.DESCRIPTOR)(shape(large=2**64 - 1, signed=-(2**63)))
    text = orjson.dumps(written)
    assert b'"large":18446744073709551615' in text
    assert b'"signed":-9223372036854775808' in text


def test_timestamp_has_milliseconds_and_z(shape: type[Any]) -> None:
    message = shape()
    message.made_ts.seconds = 1709209800
    assert compile_encoder(shape.DESCRIPTOR)(message)["made_ts"] == "2024-02-29T12:30:00.000Z"
    message.made_ts.nanos = 250_999_999
    assert compile_encoder(shape.DESCRIPTOR)(message)["made_ts"] == "2024-02-29T12:30:00.250Z"


def test_encoded_message_decodes_to_itself(shape: type[Any]) -> None:
    message = shape(
        text="é",
        flag=True,
        digest=b"\0\xff",
        kind=2,
        numbers=[1, 2],
        digests=[b"a", b""],
        inner={"size": 3},
        inners=[{"size": 1}, {}],
        listed={"names": ["a"]},
        by_name={"b": 2, "a": 1},
        by_inner={"k": {"size": 5}},
        ratio=0.1,
    )
    message.made_ts.FromMilliseconds(1)
    again = shape()
    text = orjson.dumps(compile_encoder(shape.DESCRIPTOR)(message))
    assert not compile_decoder(shape.DESCRIPTOR)(again, orjson.loads(text))
    assert again == message


def test_map_keys_are_sorted(shape: type[Any]) -> None:
    names = [f"name-{number}" for number in range(20)]
    message = shape(by_name=dict.fromkeys(reversed(names), 1))
    assert list(compile_encoder(shape.DESCRIPTOR)(message)["by_name"]) == sorted(names)


def test_port_has_null_for_inapplicable_fields() -> None:
    write = compile_encoder(descriptor_of(lobby_pb2.Port))
    assert write(lobby_pb2.Port(host="h:80", hostname="h", port=80)) == {
        "host": "h:80",
        "hostname": "h",
        "port": 80,
        "port_range": None,
        "is_tls": False,
    }
    ranged = lobby_pb2.Port(hostname="h", port_range=lobby_pb2.PortRange(min=1, max=2), is_tls=True)
    assert write(ranged) == {
        "host": None,
        "hostname": "h",
        "port": None,
        "port_range": {"min": 1, "max": 2},
        "is_tls": True,
    }


def test_party_tokens_are_included_only_for_a_party() -> None:
    write = compile_encoder(descriptor_of(matchmaker_pb2.JoinLobbyResponse))
    alone = matchmaker_pb2.JoinLobbyResponse(player=lobby_pb2.Player(token="t"))
    assert "players" not in write(alone)
    alone.players.add(token="t")
    assert write(alone)["players"] == [{"token": "t"}]


def test_listed_state_is_the_stored_text() -> None:
    write = compile_encoder(descriptor_of(lobby_pb2.LobbyInfo))
    text = b'{ "n" : 123456789012345678901234567890 }'
    assert b'"state":' + text in orjson.dumps(write(lobby_pb2.LobbyInfo(state=text)))
    assert "state" not in write(lobby_pb2.LobbyInfo())
