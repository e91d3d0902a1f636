"""Throughput, latency and memory of edge-guard.

Baseline: HAProxy on the same core, or a direct connection to the server. Edge-guard (one thread for streams, one for
datagrams), HAProxy and nginx run on the service's core. Load and game server run on the other core. Every response and
datagram is compared with its expected content.
"""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from bench import proxies
from bench.machine import LOAD_CORE, Bench, staying_on
from bench.proxies import HOST, Guard, Proxy
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, interleaved, median

NAME: Final = "edge"
SECONDS: Final = 4.0
CONNECTIONS: Final = 256
TALKERS: Final = 1_000
MESSAGES_PER_S: Final = 10_000
SESSIONS: Final = 256
DATAGRAMS_PER_S: Final = 110_000
"""Sent datagrams per second. At least 100,000 must arrive."""
IDLE: Final = 10_000
IDLE_MB: Final = 200
IDLE_REQUESTS: Final = 100
_APART: Final = 8_192
"""Largest number of file descriptors that edge-guard reserves for other purposes."""
_LIMITS: Final = {"connections_per_address": 20_000}
_UPGRADE: Final = (
    f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
).encode()
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    parts: list[Callable[[Bench], tuple[Runs, list[Figure]]]] = [messages, datagrams, idle]
    about: dict[str, str] = {}
    install = proxies.missing()
    if install is None:
        parts = [requests, stream, *parts]
    else:
        about["skipped"] = f"HTTP and TCP against HAProxy: {install}"
        print(f"edge: skipped: {about['skipped']}", file=sys.stderr)
    runs: dict[str, Sequence[Run]] = {}
    figures: list[Figure] = []
    for part in parts:
        more, stated = part(bench)
        runs |= more
        figures += stated
    return Result(NAME, figures, runs, about)


def _load(bench: Bench, what: str, proxy: Proxy | str, **flags: object) -> Run:
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    before_s = 0.0 if isinstance(proxy, str) else proxy.cpu_s()
    address = proxy if isinstance(proxy, str) else proxy.address
    run = bench.native(
        "bench-edge",
        what,
        *("--address", address, "--seconds", str(SECONDS)),
        *words,
        core=LOAD_CORE,
    )
    if not isinstance(proxy, str):
        run["proxy_cpu_s"] = proxy.cpu_s() - before_s
    return run


def requests(bench: Bench) -> tuple[Runs, list[Figure]]:
    shape = {"host": HOST, "connections": CONNECTIONS, "bytes": proxies.BODY_BYTES}
    with (
        proxies.nginx(bench, proxies.fixed_body()) as origin,
        proxies.haproxy(bench, "http", int(origin.address.rpartition(":")[2])) as haproxy,
        proxies.edge_guard(bench, {"game": ("http", origin.address)}, limits=_LIMITS) as guard,
    ):
        ours = guard.proxy("game")
        runs = interleaved(
            {
                "http haproxy": lambda: _load(bench, "http", haproxy, **shape),
                "http edge-guard": lambda: _load(bench, "http", ours, **shape),
                "http nginx alone": lambda: _load(bench, "http", origin, **shape),
            },
            ROUNDS,
        )
    rate, other, alone = (
        median(runs[f"http {name}"], "answers_per_s")
        for name in ("edge-guard", "haproxy", "nginx alone")
    )
    cpu_us, other_cpu_us = (
        1e6 * median(runs[f"http {name}"], "proxy_cpu_s") / SECONDS / median_rate
        for name, median_rate in (("edge-guard", rate), ("haproxy", other))
    )
    share = median(runs["http nginx alone"], "load_cpu_share")
    return runs, [
        Figure(
            f"HTTP proxied, nginx on the same core, {CONNECTIONS} connections kept alive",
            rate / other,
            "of HAProxy",
            at_least=0.7,
            note=f"{rate:,.0f}/s against {other:,.0f}/s, nginx alone {alone:,.0f}/s "
            f"(load {share:.0%} of its core); CPU of the proxy {cpu_us:.0f} µs against "
            f"{other_cpu_us:.0f} µs a request",
        )
    ]


def stream(bench: Bench) -> tuple[Runs, list[Figure]]:
    port = proxies.free_port()
    address = f"127.0.0.1:{port}"
    with (
        proxies.haproxy(bench, "tcp", port) as haproxy,
        proxies.edge_guard(bench, {"game": ("tcp", address)}) as guard,
    ):
        ours = guard.proxy("game")
        runs = interleaved(
            {
                "tcp haproxy": lambda: _load(bench, "stream", haproxy, listen=port),
                "tcp edge-guard": lambda: _load(bench, "stream", ours, listen=port),
                "tcp straight": lambda: _load(bench, "stream", address, listen=port),
            },
            ROUNDS,
        )
    rate, other, straight = (
        median(runs[f"tcp {name}"], "bytes_per_s") / 1e6
        for name in ("edge-guard", "haproxy", "straight")
    )
    cpu, other_cpu = (
        median(runs[f"tcp {name}"], "proxy_cpu_s")
        / median(runs[f"tcp {name}"], "bytes")
        * 1e9
        * 1e3
        for name in ("edge-guard", "haproxy")
    )
    share = median(runs["tcp edge-guard"], "load_cpu_share")
    return runs, [
        Figure(
            "TCP, one connection",
            rate / other,
            "of HAProxy with splice",
            at_least=0.8,
            note=f"{rate:,.0f} MB/s against {other:,.0f}, straight {straight:,.0f}; load {share:.0%} "
            "of its core",
        ),
        Figure(
            "the same by CPU time a GB, the better measure if the load has no spare core",
            other_cpu / cpu,
            "of HAProxy with splice",
            note=f"{cpu:.0f} ms against {other_cpu:.0f} ms",
        ),
    ]


def messages(bench: Bench) -> tuple[Runs, list[Figure]]:
    shape = {"connections": TALKERS, "rate": MESSAGES_PER_S}
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(proxies.server(bench))
        routes = {"game": ("http", backend)}
        guard = stack.enter_context(proxies.edge_guard(bench, routes, limits=_LIMITS))
        ways: dict[str, Proxy | str] = {"straight": backend, "edge-guard": guard.proxy("game")}
        if proxies.has_haproxy():
            port = int(backend.rpartition(":")[2])
            ways["haproxy"] = stack.enter_context(proxies.haproxy(bench, "http", port))
        runs = interleaved(
            {
                f"websocket {way}": partial(_load, bench, "talk", to, **shape)
                for way, to in ways.items()
            },
            ROUNDS,
        )
    what = f"WebSocket, {MESSAGES_PER_S:,} messages/s over {TALKERS:,} connections, open loop"
    figures = [_added(what, runs["websocket straight"], runs["websocket edge-guard"])]
    if "haproxy" in ways:
        figures.append(_of_machine("HAProxy", runs, "websocket", "haproxy"))
    return runs, figures


def datagrams(bench: Bench) -> tuple[Runs, list[Figure]]:
    """Measures UDP in both directions: the full rate for throughput, then half of the rate for latency."""
    # Each round has new sessions, and the sessions of the round before stay for a minute.
    limits = {"datagram_sessions_per_address": 20_000}
    with (
        proxies.server(bench) as backend,
        proxies.edge_guard(bench, {"game": ("udp", backend)}, limits=limits) as guard,
        proxies.forwarder(bench, backend) as bare,
    ):
        ours = guard.proxy("game")

        def load(to: Proxy | str, rate: float, tick_us: int) -> Run:
            shape = {"sessions": SESSIONS, "rate": rate, "tick-us": tick_us}
            return _load(bench, "datagrams", to, **shape)

        half = DATAGRAMS_PER_S / 2
        runs = interleaved(
            {
                "udp edge-guard": lambda: load(ours, DATAGRAMS_PER_S, 200),
                "udp half straight": lambda: load(backend, half, 100),
                "udp half edge-guard": lambda: load(ours, half, 100),
                "udp half forwarder": lambda: load(bare, half, 100),
            },
            ROUNDS,
        )
    rate = median(runs["udp edge-guard"], "received_per_s")
    lost = median(runs["udp edge-guard"], "lost_share")
    cpu = median(runs["udp edge-guard"], "proxy_cpu_s") / SECONDS
    share = median(runs["udp edge-guard"], "load_cpu_share")
    what = f"UDP, 128 bytes, {SESSIONS} sessions, both directions at once"
    return runs, [
        Figure(
            f"{what}, payloads checked",
            rate,
            "packets/s each way",
            at_least=100_000,
            note=f"{DATAGRAMS_PER_S:,} planned; edge-guard {cpu:.0%} of its core, load {share:.0%} of its own "
            "without the server",
        ),
        Figure("of these lost on either way", lost * 100, "%", at_most=0.1),
        _added(f"{what}, at {half:,.0f}/s", runs["udp half straight"], runs["udp half edge-guard"]),
        _of_machine("a bare forwarder", runs, "udp half", "forwarder"),
    ]


def _of_machine(name: str, runs: Runs, traffic: str, way: str) -> Figure:
    """Returns the latency that another proxy adds, which shows the cost of the machine."""
    straight, ours, other = (runs[f"{traffic} {one}"] for one in ("straight", "edge-guard", way))
    own_share, share = (median(some, "proxy_cpu_s") / SECONDS for some in (ours, other))
    of_core = f"{share:.0%} of the core, edge-guard {own_share:.0%}"
    what = f"the same with {name} in its place"
    return _added(what, straight, other, at_most=None, note=of_core)


def _added(
    what: str,
    straight: Sequence[Run],
    passed_on: Sequence[Run],
    *,
    at_most: float | None = 200,
    note: str = "",
) -> Figure:
    before, after = (median(runs, "p99_us") for runs in (straight, passed_on))
    middle = " → ".join(f"{median(runs, 'p50_us'):.0f}" for runs in (straight, passed_on))
    summary = f"p99 {before:.0f} → {after:.0f} µs, p50 {middle} µs"
    return Figure(
        f"{what}: added at p99",
        after - before,
        "µs",
        at_most=at_most,
        note=f"{summary}; {note}" if note else summary,
    )


def idle(bench: Bench) -> tuple[Runs, list[Figure]]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with proxies.certificate(bench) as (authority, certificates):
        tls = ssl.create_default_context(cafile=str(authority))
        plain = _idle(bench, "http", None)
        sealed = _idle(bench, "https", tls, certificates=certificates)
    runs = {"idle http": [plain], "idle https": [sealed]}
    return runs, [_of_idle(plain, ""), _of_idle(sealed, ", TLS")]


def _idle(bench: Bench, kind: str, tls: ssl.SSLContext | None, **settings: Any) -> Run:
    limits = {**_LIMITS, "connections": IDLE + 100, "datagram_sessions": 1}
    with (
        proxies.server(bench) as backend,
        proxies.edge_guard(bench, {"game": (kind, backend)}, limits=limits, **settings) as guard,
        staying_on(LOAD_CORE),
    ):
        return _held(guard, _as_many_as_fit(guard), tls)


def _of_idle(run: Run, how: str) -> Figure:
    count = int(run["connections"])
    few = "" if count == IDLE else f"; no more fit into {run['descriptors']:,.0f} descriptors"
    return Figure(
        f"RSS with {count:,} idle WebSockets{how}",
        run["rss_mb"],
        "MB",
        at_most=None if how else IDLE_MB * count / IDLE,
        note=f"{run['bytes_each'] / 1e3:.1f} kB each above {run['before_mb']:.0f} MB{few}",
    )


def _as_many_as_fit(guard: Guard) -> int:
    descriptors = guard.figure("descriptors_max")
    free = descriptors - min(_APART, descriptors // 10)
    return min(IDLE, int(free) // 2 - 10)


def _held(guard: Guard, count: int, tls: ssl.SSLContext | None) -> Run:
    before = guard.memory_kib() * 1024
    connections: list[socket.socket] = []
    try:
        for _ in range(count):
            connections.append(_upgraded(guard.ports["game"], tls))
        connection_count = guard.figure('connections{kind="websocket"}')
        if connection_count != count:
            raise WrongAnswer(f"{count} WebSockets were opened, {connection_count:.0f} exist")
        after = guard.memory_kib() * 1024
        for one in random.Random(count).sample(connections, IDLE_REQUESTS):
            one.sendall(b"\x82\x82\0\0\0\0ok")
            if (answer := one.recv(16)) != b"\x82\x02ok":
                raise WrongAnswer(f"an idle WebSocket answers with {answer!r}")
    finally:
        for one in connections:
            one.close()
    return {
        "connections": count,
        "descriptors": guard.figure("descriptors_max"),
        "before_mb": before / 1e6,
        "rss_mb": after / 1e6,
        "bytes_each": (after - before) / count,
    }


def _upgraded(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 20)
    if tls is not None:
        connection = tls.wrap_socket(connection, server_hostname=HOST)
    connection.sendall(_UPGRADE)
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = connection.recv(4_096)
        if not piece:
            raise WrongAnswer(f"a WebSocket was refused after {head!r}")
        head += piece
    if not head.startswith(b"HTTP/1.1 101 "):
        raise WrongAnswer(f"not upgraded: {head!r}")
    return connection
