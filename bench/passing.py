"""Time that the front adds to a passed request, and passed requests at three times their peak rate.

The request is a find with a `dev_` token, which Python answers. It is sent to the front and to the socket of Python
behind it in turn, one at a time.

The peak rate is that of 256 connections in a closed loop. Directly after each peak, requests come at three times its
rate from eight client addresses. They have eight tokens, because one token has only a part of the permits. So they use
up all permits and the queue behind them.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc

from bench.http_load import Request, send_all
from bench.machine import LOAD_CORE, Bench, staying_on
from bench.players import MODE, Players
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running
from pyservice.observability.health import raise_descriptor_limit
from pyservice.pb.hosting.v1 import matchmaker_pb2

NAME: Final = "passing"
_ANSWER: Final = b'"lobby_id"'
_PASSED: Final = "hosting_front_passed_total"
_REQUESTS: Final = 2_000
_TIMES: Final = 3
_PEAK_CONNECTIONS: Final = 256
_PEAK_REQUESTS: Final = 10_000
_OVER_S: Final = 3.0
_OVER_CONNECTIONS: Final = 16_384
"""More than the permits and the requests that wait for them. An eighth of the open files if that is less."""
_ADDRESSES: Final = 8


def run(bench: Bench) -> Result:
    connections = min(_OVER_CONNECTIONS, raise_descriptor_limit() // 8)
    with running(bench.scratch("passing")) as service, staying_on(LOAD_CORE):
        players = Players(service)
        tokens = [players.development_token() for _ in range(_ADDRESSES)]
        added = _one_at_a_time(service, tokens[0])
        overload = _overload(service, tokens, connections)
    figures = [
        _added("HTTP", added, "http", at_most=150.0),
        _added("gRPC", added, "grpc", at_most=None),
        *_overload_figures(overload),
    ]
    return Result(NAME, figures, added | overload)


def _find(service: Service, token: str) -> Request:
    return service.request("find", {"game_modes": [MODE]}, _ANSWER.decode(), token=token)


def _one_at_a_time(service: Service, token: str) -> dict[str, list[Run]]:
    request = _find(service, token).raw
    passed = service.metric(_PASSED)
    host, _, port = service.address.rpartition(":")
    python_grpc = f"unix:{service.data_dir / 'data-grpc.sock'}"
    with (
        socket.create_connection((host, int(port))) as http_front,
        socket.socket(socket.AF_UNIX) as http_python,
        grpc.insecure_channel(str(service.ready["grpc"])) as grpc_front,
        grpc.insecure_channel(python_grpc) as grpc_python,
    ):
        http_python.connect(str(service.data_dir / "data-http.sock"))
        runs = interleaved(
            {
                "http front": lambda: _timed(lambda: _ask(http_front, request)),
                "http python": lambda: _timed(lambda: _ask(http_python, request)),
                "grpc front": lambda: _timed(_call_of(grpc_front, token)),
                "grpc python": lambda: _timed(_call_of(grpc_python, token)),
            }
        )
    sent = sum(one["requests"] for name in ("http front", "grpc front") for one in runs[name])
    if (passed := service.metric(_PASSED) - passed) < sent:
        raise WrongAnswer(f"the front passed {passed:.0f} of {sent} requests")
    return runs


def _timed(ask: Callable[[], None]) -> Run:
    times_s = []
    for _ in range(_REQUESTS):
        began_s = time.perf_counter()
        ask()
        times_s.append(time.perf_counter() - began_s)
    return {"p50_us": 1e6 * statistics.median(times_s), "requests": _REQUESTS}


def _ask(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    response = b""
    while not response.endswith(b"}"):
        response += connection.recv(65_536)
    if not response.startswith(b"HTTP/1.1 200 ") or _ANSWER not in response:
        raise WrongAnswer(f"find: {response[:200]!r}")


def _call_of(channel: grpc.Channel, token: str) -> Callable[[], None]:
    """Returns a function that makes one call. A wrong status raises grpc.RpcError."""
    method: Any = channel.unary_unary(
        "/hosting.v1.Matchmaker/FindLobby",
        request_serializer=matchmaker_pb2.FindLobbyRequest.SerializeToString,
        response_deserializer=matchmaker_pb2.FindLobbyResponse.FromString,
    )
    request = matchmaker_pb2.FindLobbyRequest(game_modes=[MODE])
    metadata = (("authorization", f"Bearer {token}"),)

    def call() -> None:
        method(request, metadata=metadata)

    return call


def _added(
    name: str, runs: Mapping[str, Sequence[Run]], transport: str, at_most: float | None
) -> Figure:
    front, python = (median(runs[f"{transport} {way}"], "p50_us") for way in ("front", "python"))
    return Figure(
        f"a request that the front passes on over {name}, added p50",
        front - python,
        "µs",
        at_most=at_most,
        note=f"{front:.0f} µs through the front, {python:.0f} µs at Python's socket, one at a time",
    )


def _overload(service: Service, tokens: Sequence[str], connections: int) -> dict[str, list[Run]]:
    finds = itertools.cycle([_find(service, token) for token in tokens])
    peak_requests, peaks, overloads = list(itertools.islice(finds, _PEAK_REQUESTS)), [], []
    for _ in range(ROUNDS):
        peak = asyncio.run(send_all(service.address, peak_requests, _PEAK_CONNECTIONS)).run
        rate = _TIMES * peak["answers_per_s"]
        sent = send_all(
            service.address,
            list(itertools.islice(finds, round(_OVER_S * rate))),
            connections,
            rate,
            may_be_refused=True,
            addresses=_ADDRESSES,
        )
        overload = asyncio.run(sent).run
        peaks.append(peak)
        overloads.append(overload | {"of_peak": overload["answers_per_s"] / peak["answers_per_s"]})
    return {"peak": peaks, "overload": overloads}


def _overload_figures(runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    over = runs["overload"]
    peak_rate, rate = (median(runs[name], "answers_per_s") for name in ("peak", "overload"))
    refused, p50_us, p99_us = (median(over, name) for name in ("refused", "p50_us", "p99_us"))
    files = raise_descriptor_limit()
    return [
        Figure(
            "passed requests at three times their peak rate, of the peak directly before",
            median(over, "of_peak"),
            "of its rate",
            at_least=0.9,
            note=f"{rate:,.0f}/s of {peak_rate:,.0f}/s; answered after {p50_us / 1e3:.0f} ms (p50) "
            f"and {p99_us / 1e3:,.0f} ms (p99), with {files:,} open files",
        ),
        Figure(
            "the same, p99 until a request is refused",
            median(over, "refused_p99_us") / 1e3,
            "ms",
            at_most=50.0,
            note=f"{refused:,.0f} of {median(over, 'answers') + refused:,.0f} are refused",
        ),
    ]
