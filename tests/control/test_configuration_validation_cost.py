"""CPU time and response size for the largest configurations."""

from __future__ import annotations

import time

import orjson
import pytest

from pyservice.control.configuration_encoding import to_feed
from pyservice.control.configuration_validation import configuration_problems, image_ids
from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.findings import MAX_PROBLEMS
from pyservice.schema.methods import METHODS
from pyservice.schema.validation import refuse_invalid
from tests.control.configurations import CONTEXT
from tests.support.linear_cost import (
    MAX_ANSWER_BYTES,
    MIB,
    Make,
    assert_linear,
    distinct,
    filled,
    text,
)
from tests.support.tiers import one_of

METHOD = METHODS["hosting.v1.Versions.ValidateVersion"]
LIMIT = METHOD.body_limit_bytes or 0
# Limit of the CPU time. Measured values are 0.05 to 1 s.
MAX_CPU_S = 8.0

_decode = http_json_codec.decoder(METHOD)

HEAD = b'{"display_name":"1","config":{'
MODE = HEAD + b'"matchmaker":{"game_modes":{"duel":{'
DOCKER = MODE + b'"docker":{'
ROUTES = HEAD + b'"cdn":{"routes":['
_PORT = b'"p%x":{"port":0,"protocol":"x","proxy":"none","port_range":{"min":9,"max":1}}'
_MODE = b'"!%x":{"max_players":0,"tier":"x","regions":{"x":{"tier":"y"}},"idle_lobbies":{"min":9,"max":1}}'
_URL = b'"%x":{"actions":{"find":{"enabled":true,"verification":{"url":"http://[","headers":{"":""}}}}}'


def _routes(size: int) -> bytes:
    headers = b"[" + b",".join([b'{"name":"!","value":"\\n"}'] * 32) + b"]"
    step = b'{"kind":{"custom_headers":{"headers":' + headers + b"}}}"
    route = b'{"glob":"[","priority":101,"middlewares":[' + b",".join([step] * 32) + b"]}"
    return filled(ROUTES, route, b"]}}}")(size)


def _spread(size: int) -> bytes:
    names = b",".join(b'"%x":1' % number for number in range(size // 9_500))
    modes = distinct(HEAD + b'"matchmaker":{"game_modes":{', b'"%x":{' + names + b"}", b"}}}}")
    return modes(size)


BODIES: dict[str, Make] = {
    "modes": distinct(HEAD + b'"matchmaker":{"game_modes":{', _MODE, b"}}}}"),
    "modes: numbers": distinct(HEAD + b'"matchmaker":{"game_modes":{', b'"%x":1', b"}}}}"),
    "mode: one long name": text(HEAD + b'"matchmaker":{"game_modes":{"', b"a-", b'":{}}}}}'),
    "mode: unknown": distinct(MODE, b'"%x":1', b"}}}}}"),
    "regions": distinct(MODE + b'"regions":{', b'"%x":{"tier":""}', b"}}}}}}"),
    "env": distinct(DOCKER + b'"env":{', b'"PORT_%x":""', b"}}}}}}}"),
    "env: one long value": text(DOCKER + b'"env":{"":"', b"\xc3\xa9", b'"}}}}}}}'),
    "args": filled(DOCKER + b'"args":[', b'"\\u0000"', b"]}}}}}}"),
    "args: long": filled(DOCKER + b'"args":[', b'"' + b"x" * 2000 + b'"', b"]}}}}}}"),
    "ports": distinct(DOCKER + b'"ports":{', _PORT, b"}}}}}}}"),
    "image: long": text(DOCKER + b'"image_id":"', b"0", b'"}}}}}}'),
    "urls": distinct(HEAD + b'"matchmaker":{"game_modes":{', _URL, b"}}}}"),
    "url: long": text(
        MODE + b'"actions":{"find":{"enabled":true,"verification":{"headers":{},"url":"http://',
        b"a.",
        b'"}}}}}}}}',
    ),
    "routes": filled(ROUTES, b'{"glob":"[","priority":101,"middlewares":[]}', b"]}}}"),
    "routes: full": _routes,
    "glob: long": text(ROUTES + b'{"middlewares":[],"priority":0,"glob":"', b"[", b'"}]}}}'),
    "scripts: numbers": distinct(HEAD + b'"scripts":{', b'"%x":1', b"}}}"),
    "kv: wide": text(HEAD + b'"scripts":{"":1},"kv":{"":[0', b",[]", b"]}}}"),
    "kv: repeated": filled(HEAD + b'"scripts":{"":1},', b'"kv":{}', b"}}"),
    "kv: spaces": text(HEAD + b'"scripts":{"":1},"kv":{}', b" ", b"}}"),
    "engine: unknown": distinct(HEAD + b'"engine":{"unity":{},', b'"%x":{}', b"}}}"),
    "unknown": distinct(HEAD, b'"%x":1', b"}}"),
    "unknown: spread": _spread,
    "kv: deep": text(
        HEAD + b'"scripts":{"":1},"kv":{"":' + b"[" * 50 + b"0", b",[[[[[]]]]]", b"]" * 50 + b"}}}"
    ),
}


def cpu_s(body: bytes) -> float:
    began_s = time.process_time()
    message, unread = _decode(body, b"", {"game_id": "arena"})
    assert isinstance(message, pb.ValidateVersionRequest)
    assert len(unread.in_body) <= MAX_PROBLEMS + 1
    try:
        refuse_invalid(METHOD, message, unread)
        image_ids(message.config)
        problems = configuration_problems(message.config, CONTEXT)
    except ServiceError as refused:
        problems = list(refused.errors)
    answer = orjson.dumps([list(problem) for problem in problems])
    took_s = time.process_time() - began_s
    assert 1 <= len(problems) <= MAX_PROBLEMS + 1
    assert len(answer) <= MAX_ANSWER_BYTES
    return took_s


@pytest.mark.parametrize("name", one_of(4, BODIES))
@pytest.mark.full
def test_invalid_configuration_is_cheap_and_gets_a_small_answer(name: str) -> None:
    body = BODIES[name](LIMIT)
    assert LIMIT - 40_000 < len(body) <= LIMIT == 4 * MIB
    assert cpu_s(body) < MAX_CPU_S


@pytest.mark.full
@pytest.mark.parametrize("name", BODIES)
def test_validation_time_is_linear(name: str) -> None:
    small, large = BODIES[name](LIMIT // 4), BODIES[name](LIMIT)
    assert_linear(lambda: cpu_s(small), lambda: cpu_s(large))


@pytest.mark.full
def test_largest_valid_configuration_is_linear() -> None:
    def good_s(modes: int, size: int) -> float:
        env = {f"N{number}": "x" * size for number in range(64)}
        mode = {"docker": {"env": env}}
        config = {"matchmaker": {"game_modes": {f"m{n}": mode for n in range(modes)}}}
        body = orjson.dumps({"display_name": "1", "config": config})
        assert len(body) <= LIMIT
        began_s = time.process_time()
        message, unread = _decode(body, b"", {"game_id": "arena"})
        refuse_invalid(METHOD, message, unread)
        assert isinstance(message, pb.ValidateVersionRequest)
        assert configuration_problems(message.config, CONTEXT) == []
        assert len(to_feed(message.config).game_modes) == modes
        return time.process_time() - began_s

    # A version may have at most 640 KiB of matchmaker configuration.
    assert good_s(32, 300) < MAX_CPU_S
    assert_linear(lambda: good_s(8, 300), lambda: good_s(32, 300))
