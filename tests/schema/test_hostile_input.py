"""Largest requests with as many errors as possible: CPU time and response size stay small.

Time is CPU time of this process. Limits are several times the measured values.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
import pytest
from google.protobuf.message import Message

from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.rpc import error_status
from pyservice.schema import json_text
from pyservice.schema.findings import MAX_PROBLEMS
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid
from pyservice.transport.native import problem_json
from tests.support.linear_cost import (
    MAX_ANSWER_BYTES,
    MIB,
    Make,
    assert_linear,
    distinct,
    filled,
    text,
)

RAY_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
# Measured 0.01 to 0.4 s. A quadratic algorithm takes minutes.
MAX_CPU_S = 4.0
# The gRPC server adds this to a response. Clients accept 8 KiB of headers.
MAX_TRAILER_BYTES = 6 * 1024

BY_SLUG = {method.slug: method for method in METHODS.values()}
DECODERS = {slug: http_json_codec.decoder(method) for slug, method in BY_SLUG.items()}
PATHS = {"attach": {"game_id": "arena", "namespace_id": "prod"}}


ATTACH = b'{"game_mode":"duel",'
ONE_PORT = ATTACH + b'"ports":{"ws":{'

BODIES: dict[str, tuple[str, Make]] = {
    "modes: numbers": ("find", filled(b'{"game_modes":[', b"1", b"]}")),
    "modes: one bad name": ("find", filled(b'{"game_modes":[', b'"!"', b"]}")),
    "modes: bad names": ("find", distinct(b'{"game_modes":[', b'"!%x"', b"]}")),
    "modes: good names": ("find", distinct(b'{"game_modes":[', b'"%x"', b"]}")),
    "modes: empty lists": ("find", filled(b'{"game_modes":[', b"[]", b"]}")),
    "modes: one long name": ("find", text(b'{"game_modes":["', b"a-", b'!"]}')),
    "regions: nulls": ("find", filled(b'{"game_modes":["a"],"regions":[', b"null", b"]}")),
    "regions: bad names": ("find", filled(b'{"game_modes":["a"],"regions":[', b'"!"', b"]}")),
    "regions: one long name": ("find", text(b'{"game_modes":["a"],"regions":["', b"a-", b'"]}')),
    "tags: numbers": ("find", distinct(b'{"game_modes":["a"],"tags":{', b'"%x":1', b"}}")),
    "tags: texts": ("find", distinct(b'{"game_modes":["a"],"tags":{', b'"%x":""', b"}}")),
    "tags: one long name": ("find", text(b'{"game_modes":["a"],"tags":{"', b"\xc3\xa9", b'":1}}')),
    "tags: long names": (
        "find",
        distinct(b'{"game_modes":["a"],"tags":{', b'"%x' + b"\\u0001" * 1000 + b'":1', b"}}"),
    ),
    "captcha: unknown": ("find", distinct(b'{"captcha":{"captcha_a":{},', b'"%x":1', b"}}")),
    "verification: raw": ("find", distinct(b'{"verification_data":[],', b'"%x":[{}]', b"}")),
    "verification: repeated": ("find", filled(b'{"verification_data":1,', b'"a":1', b"}")),
    "address: colons": ("find", text(b'{"client_address":"', b":", b'"}')),
    "address: digits": ("find", text(b'{"client_address":"', b"1.", b'"}')),
    "lobby: long": ("join", text(b'{"party_size":"1","lobby_id":"', b"0", b'"}')),
    "token: list": ("connected", filled(b'{"player_token":[', b"1", b"]}")),
    "digits": ("disconnected", text(b'{"hold_ms":', b"9", b"}")),
    "tokens: numbers": ("heartbeat", filled(b'{"player_tokens":[', b"1", b"]}")),
    "tokens: lists": ("heartbeat", filled(b'{"player_tokens":[', b"[]", b"]}")),
    "tokens: too many": ("heartbeat", filled(b'{"player_tokens":[', b'""', b"]}")),
    "tokens: wrong, not too many": (
        "heartbeat",
        filled(b'{"player_tokens":[', b"0.12345678901234", b"]}"),
    ),
    "attach: unknown": ("attach", distinct(b"{", b'"%x":1', b"}")),
    "attach: one unknown, long": ("attach", text(b'{"', b"x", b'":1}')),
    "attach: unknown, long": ("attach", distinct(b"{", b'"%x' + b"y" * 4000 + b'":1', b"}")),
    "ports: empty": ("attach", distinct(ATTACH + b'"ports":{', b'"%x":{}', b"}}")),
    "ports: numbers": ("attach", distinct(ATTACH + b'"ports":{', b'"%x":1', b"}}")),
    "ports: unknown": ("attach", distinct(ONE_PORT, b'"%x":1', b"}}}")),
    "ports: long address": ("attach", text(ONE_PORT + b'"address":"', b"a.", b'"}}}')),
    "attach tags: lists": ("attach", distinct(ATTACH + b'"tags":{', b'"%x":[]', b"}}")),
    "attach tags: texts": ("attach", distinct(ATTACH + b'"tags":{', b'"%x":""', b"}}")),
    "deep": ("connected", text(b"[" * 60 + b"0", b",[[[[]]]]", b"]" * 60)),
    "too deep": ("connected", text(b"", b"[", b"")),
    "spaces": ("find", text(b'{"verification_data":', b" ", b"1}")),
}


def http_cpu_s(slug: str, body: bytes, query: bytes = b"") -> tuple[float, ServiceError]:
    decode, method, path = DECODERS[slug], BY_SLUG[slug], PATHS.get(slug, {})
    began_s = time.process_time()
    message, unread = decode(body, query, path)
    assert len(unread.in_body) <= MAX_PROBLEMS + 1
    with pytest.raises(ServiceError) as raised:
        refuse_invalid(method, message, unread)
    answer = problem_json(raised.value, RAY_ID)
    took_s = time.process_time() - began_s
    assert len(answer) <= MAX_ANSWER_BYTES
    return took_s, raised.value


@pytest.mark.parametrize("name", BODIES)
def test_http_body_of_invalid_entries_costs_little(name: str) -> None:
    slug, make = BODIES[name]
    body = make(MIB)
    assert MIB - 12_000 < len(body) <= MIB
    took_s, error = http_cpu_s(slug, body)
    assert error.errors
    assert len(error.errors) <= MAX_PROBLEMS + 1
    assert took_s < MAX_CPU_S


@pytest.mark.full
@pytest.mark.parametrize("name", BODIES)
def test_http_cost_is_linear_in_the_body(name: str) -> None:
    slug, make = BODIES[name]
    small, large = make(MIB // 4), make(MIB)
    assert_linear(lambda: http_cpu_s(slug, small)[0], lambda: http_cpu_s(slug, large)[0])


def test_query_parameters_are_limited_too() -> None:
    took_s, error = http_cpu_s("list", b"", b"&".join(b"%x" % number for number in range(1800)))
    assert error.code == "QUERY_INVALID"
    assert error.errors[-1].message == f"and {1800 - MAX_PROBLEMS} more problems"
    assert took_s < MAX_CPU_S


def test_few_problems_are_listed_and_many_are_counted() -> None:
    names = [f"n{number}" for number in range(MAX_PROBLEMS - 1)]
    body = orjson.dumps(dict.fromkeys(names, 1))
    _, error = http_cpu_s("attach", body)
    paths = [problem.path for problem in error.errors]
    assert paths == [*((name, "unknown-field") for name in names), ("game_mode", "required")]
    _, error = http_cpu_s("attach", orjson.dumps(dict.fromkeys([*names, "x", "y"], 1)))
    assert len(error.errors) == MAX_PROBLEMS + 1
    assert error.errors[-1].path == ("too-many",)
    assert error.errors[-1].message == "and 2 more problems"


def many(number: int, size_of_one: int) -> range:
    return range(number // size_of_one)


MESSAGES: dict[str, tuple[str, Callable[[int], Message]]] = {
    "modes: one byte": ("find", lambda size: pb.FindLobbyRequest(game_modes=["!"] * (size // 3))),
    "modes: empty": ("find", lambda size: pb.FindLobbyRequest(game_modes=[""] * (size // 2))),
    "modes: one long": ("find", lambda size: pb.FindLobbyRequest(game_modes=["é" * (size // 2)])),
    "regions: one byte": ("find", lambda size: pb.FindLobbyRequest(regions=["A"] * (size // 3))),
    "regions: one long": ("find", lambda size: pb.FindLobbyRequest(regions=["a-" * (size // 2)])),
    "tags": ("find", lambda size: pb.FindLobbyRequest(tags={f"{n:x}": "" for n in many(size, 11)})),
    "tags: long": (
        "find",
        lambda size: pb.FindLobbyRequest(tags={f"{n}" + "\0" * 5000: "" for n in many(size, 5012)}),
    ),
    "address": ("find", lambda size: pb.FindLobbyRequest(client_address=":" * size)),
    "lobby": ("join", lambda size: pb.JoinLobbyRequest(lobby_id="-" * size)),
    "raw": ("find", lambda size: pb.FindLobbyRequest(verification_data=b"[" * size)),
    "raw: wide": (
        "find",
        lambda size: pb.FindLobbyRequest(verification_data=b"[" + b"[]," * (size // 3) + b"0]"),
    ),
    "tokens": (
        "heartbeat",
        lambda size: pb.HeartbeatRequest(player_tokens=pb.PlayerTokens(tokens=[""] * (size // 2))),
    ),
    "ports": (
        "attach",
        lambda size: pb.AttachLobbyRequest(
            ports={f"P{n:x}": pb.AttachedPort() for n in many(size, 12)}
        ),
    ),
    "attach tags": (
        "attach",
        lambda size: pb.AttachLobbyRequest(tags={f"{n:x}": "" for n in many(size, 11)}),
    ),
    "attach texts": (
        "attach",
        lambda size: pb.AttachLobbyRequest(
            game_id="a-" * (size // 8), namespace_id="a" * (size // 4), region="-" * (size // 4)
        ),
    ),
}


def grpc_cpu_s(slug: str, message: Message) -> tuple[float, ServiceError]:
    method = BY_SLUG[slug]
    began_s = time.process_time()
    with pytest.raises(ServiceError) as raised:
        refuse_invalid(method, message)
    details = dict(error_status.trailers(raised.value, RAY_ID))[error_status.DETAILS]
    took_s = time.process_time() - began_s
    assert len(details) <= MAX_TRAILER_BYTES
    return took_s, raised.value


@pytest.mark.parametrize("name", MESSAGES)
def test_grpc_message_of_invalid_entries_costs_little(name: str) -> None:
    slug, make = MESSAGES[name]
    data = make(MIB).SerializeToString()
    assert 0.7 * MIB < len(data) < 1.2 * MIB
    began_s = time.process_time()
    message = BY_SLUG[slug].request.FromString(data)
    parsed_s = time.process_time() - began_s
    took_s, error = grpc_cpu_s(slug, message)
    assert error.errors
    assert parsed_s + took_s < MAX_CPU_S


@pytest.mark.full
@pytest.mark.parametrize("name", MESSAGES)
def test_grpc_cost_is_linear_in_the_message(name: str) -> None:
    slug, make = MESSAGES[name]
    small, large = make(MIB // 4), make(MIB)
    assert_linear(lambda: grpc_cpu_s(slug, small)[0], lambda: grpc_cpu_s(slug, large)[0])


@pytest.mark.parametrize(
    "make",
    [
        distinct(b"{", b'"%x":1', b"}"),
        filled(b"{", b'"a" : [ ] ', b"}"),
        distinct(b"{", b'"\xc3\xa9%x":"\xf0\x9d\x84\x9e"', b"}"),
        text(b"{", b" ", b"}"),
        text(b'{"a":"', b"\\n", b'"}'),
        text(b'{"a":0.', b"1", b"}"),
        text(b'{"a":[0', b",[[[[[]]]]]", b"]}"),
    ],
    ids=["names", "repeated", "not ascii", "spaces", "one text", "one number", "brackets"],
)
def test_member_texts_are_found_in_one_pass(make: Make) -> None:
    def cpu_s(body: bytes) -> float:
        began_s = time.process_time()
        json_text.parse(body)
        json_text.member_texts(body)
        return time.process_time() - began_s

    small, large = make(MIB // 4), make(MIB)
    assert cpu_s(make(MIB)) < MAX_CPU_S
    assert_linear(lambda: cpu_s(small), lambda: cpu_s(large))
