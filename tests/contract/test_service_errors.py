"""Errors of the whole service, provoked in every operation that can return them.

Each test starts the shared service as it needs it. `-s` prints the counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.openapi import fill_example
from tests.contract import error_cases
from tests.contract.response_check import ResponseChecker
from tests.contract.scenario import BY_SLUG, Scenario, ServedGame, open_served_game
from tests.contract.service_errors import is_passed, swept
from tests.support.sample_service import HttpConnection
from tests.support.supervised_service import SupervisedService, until

error_cases.load_areas()

WAIT_S: Final = 30.0
REQUESTS_AT_ONCE: Final = 512
"""Requests to the control plane that the front passes on at a time. One address has half of them."""
SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size may exceed the memory budget by half."""
SLOW_CLIENT_MS: Final = 1_000
LARGEST: Final = "create_site"
"""The operation with the largest body. The body budget has space for one such body and half of
another.
"""
LARGEST_BYTES: Final = 8 << 20
UNSTARTED: Final = {"create": "CAPACITY_EXHAUSTED"}
"""Error codes of operations that need the control plane to start a lobby."""
SETTINGS: Final = {
    # Waiting requests end with SHUTTING_DOWN after the service has read the requests that were sent
    # earlier.
    "stop_grace_ms": 0,
    "lame_duck_ms": 300,
    "find_wait_ms": 30_000,
    "http_limits": {"bodies_bytes": 1 << 20},
}


@pytest.fixture
def _no_left_over() -> None:
    """Replaces the check of the shared data plane, because these tests start a service of their
    own.
    """


class RestartableGame:
    def __init__(self, served_game: ServedGame) -> None:
        self.served_game = served_game
        self.service: SupervisedService = served_game.service
        self._words: tuple[str, ...] = ()

    def run(self, *words: str) -> None:
        process = self.service.process
        is_running = process is not None and process.poll() is None
        if is_running and words == self._words:
            return
        if is_running:
            self.stop()
        self._words = words
        self.service.start(*words)

    def stop(self) -> None:
        assert self.service.stop() == 0, self.service.log()

    def send(self, request: httpx.Request) -> httpx.Response:
        return self.service.client.send(request)


@pytest.fixture(scope="module")
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableGame]:
    with open_served_game(tmp_path_factory.mktemp("swept"), SETTINGS) as served_game:
        yield RestartableGame(served_game)


@pytest.fixture(scope="module")
def checker(restartable: RestartableGame) -> ResponseChecker:
    return ResponseChecker(restartable.served_game.document)


@pytest.mark.full
def test_control_plane_outage_affects_only_its_operations(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    needs = swept(
        "CONTROL_PLANE_UNAVAILABLE", test_control_plane_outage_affects_only_its_operations
    )
    restartable.run()
    requested = {}
    for slug, method in BY_SLUG.items():
        # The data plane checks only cloud_ tokens with the control plane.
        token = "cloud" if slug in needs and not is_passed(method) else "example"
        requested[slug] = restartable.served_game.scenario().request(slug, token=token)
    restartable.run("--role", "data")
    codes = {
        slug: checker.code(slug, restartable.send(request)) for slug, request in requested.items()
    }
    expected = {slug: "CONTROL_PLANE_UNAVAILABLE" if slug in needs else "OK" for slug in requested}
    assert codes == {**expected, **UNSTARTED}
    print(f"\n{dict(Counter(codes.values()))}")
    restartable.run()
    codes = {slug: checker.code(slug, restartable.send(requested[slug])) for slug in needs}
    assert codes == dict.fromkeys(needs, "OK")
    for slug in UNSTARTED:
        until(lambda slug=slug: checker.code(slug, restartable.send(requested[slug])) == "OK")  # type: ignore[misc]


@pytest.mark.full
def test_tokenless_repeat_after_key_file_restore_is_not_replayed(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    restartable.run()
    scenario = restartable.served_game.scenario()
    request = scenario.request("prepare_device_link", headers={"idempotency-key": scenario.name})
    first, again = (restartable.send(request).json()["device_link_id"] for _ in range(2))
    assert first == again
    restartable.stop()
    (restartable.service.data_dir / "control" / "keys.json").unlink()
    restartable.run()
    code = checker.code("prepare_device_link", restartable.send(request))
    assert code == "IDEMPOTENCY_KEY_REUSED"


@pytest.mark.full
def test_hanging_control_plane_overloads_and_stop_answers_all(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    this = test_hanging_control_plane_overloads_and_stop_answers_all
    restartable.run()
    overloaded, other = restartable.served_game.scenario(), restartable.served_game.scenario()
    too_many = {slug: _bare(overloaded, slug) for slug in swept("OVERLOADED", this)}
    last = {slug: _waiting(other, slug) for slug in swept("SHUTTING_DOWN", this)}
    # Requests up to the limit of one address, with two tokens so that neither token exceeds its
    # limit.
    fillers = [
        _bare(overloaded, "get_games", bearer=f"cloud_{'AB'[number % 2] * 24}")
        for number in range(REQUESTS_AT_ONCE // 2)
    ]

    async def story() -> None:
        async with _connections(restartable.service) as send:
            # Create is sent first. After three seconds without the control plane, it fails with
            # another code.
            waiting = {slug: await send(last[slug]) for slug in last if slug in UNSTARTED}
            connections = [await send(filler) for filler in fillers]
            await _until(
                restartable.service, "hosting_requests_in_flight", len(waiting) + len(connections)
            )
            refusal = await _codes(checker, {slug: await send(too_many[slug]) for slug in too_many})
            assert refusal == dict.fromkeys(too_many, "OVERLOADED")
            waiting |= {slug: await send(last[slug]) for slug in last if slug not in waiting}
            restartable.service.signal(signal.SIGTERM)
            codes = await _codes(checker, waiting)
            assert codes == dict.fromkeys(last, "SHUTTING_DOWN")
            for connection in connections:
                assert await _codes(checker, {"get_games": connection}) == {
                    "get_games": "SHUTTING_DOWN"
                }
            print(f"\n{dict(Counter([*refusal.values(), *codes.values()]))}")

    _while_it_hangs(restartable.service, story)
    assert restartable.service.process is not None
    assert restartable.service.process.wait(WAIT_S) == 0


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_hanging_control_plane_ends_in_deadline_exceeded(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    this = test_hanging_control_plane_ends_in_deadline_exceeded
    restartable.run()
    scenario = restartable.served_game.scenario()
    requested = {slug: _bare(scenario, slug) for slug in swept("DEADLINE_EXCEEDED", this)}

    async def story() -> None:
        async with _connections(restartable.service) as send:
            waiting_requests = {slug: await send(requested[slug]) for slug in requested}
            codes = await _codes(checker, waiting_requests, 90.0)
            assert codes == dict.fromkeys(requested, "DEADLINE_EXCEEDED")

    _while_it_hangs(restartable.service, story)


def _while_it_hangs(
    service: SupervisedService, story: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Runs a story without answers of the control plane.

    The front recognizes a stopped process. So a silent server also has the place of its HTTP
    server.
    """
    pid = service.pid("control")
    with _silent_server(service.data_dir / "control" / "http.sock"):
        os.kill(pid, signal.SIGSTOP)
        try:
            asyncio.run(story())
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def _silent_server(path: Path) -> Iterator[None]:
    """A server that takes requests and never answers."""
    hidden = path.with_suffix(".hidden")
    path.rename(hidden)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(2 * REQUESTS_AT_ONCE)
        until(lambda: not _has_connections(path))
        yield
    path.unlink(missing_ok=True)
    if hidden.exists():
        hidden.rename(path)


def _has_connections(path: Path) -> bool:
    """Whether a server at this path has connections, also one that had it before (unix(7))."""
    connected = "03"
    lines = Path("/proc/net/unix").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(str(path)))
    return any(state == connected for *_, state, _, _ in fields)


def _waiting(scenario: Scenario, slug: str) -> bytes:
    if is_passed(BY_SLUG[slug]):
        return _bare(scenario, slug)
    if slug in UNSTARTED:
        until(lambda: scenario.call(slug).status_code == 200)
        return _written(scenario.request(slug))
    if slug not in ("find", "join"):
        return _written(scenario.request(slug, token="cloud"))
    lobby = scenario.attach("pair", is_ready=False)
    fields: dict[str, Any] = {"lobby_id": lobby.id, "party_size": None}
    if slug == "find":
        fields = {"game_modes": ["pair"], "tags": {"scenario": scenario.name}}
    return _written(scenario.request(slug, fields=fields))


@pytest.mark.timing
def test_incomplete_request_times_out_in_every_operation(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    slugs = swept("REQUEST_TIMEOUT", test_incomplete_request_times_out_in_every_operation)
    restartable.run("--role", "data", "--set", f"http_limits.slow_client_ms={SLOW_CLIENT_MS}")
    scenario = restartable.served_game.scenario()
    incomplete = {slug: _bare(scenario, slug)[:-1] for slug in slugs}

    async def story() -> None:
        async with _connections(restartable.service) as send:
            codes = await _codes(
                checker, {slug: await send(incomplete[slug]) for slug in incomplete}
            )
            assert codes == dict.fromkeys(incomplete, "REQUEST_TIMEOUT")
            print(f"\n{dict(Counter(codes.values()))}")

    asyncio.run(story())


@pytest.mark.full
def test_bodies_above_the_memory_budget_are_overloaded(
    restartable: RestartableGame, checker: ResponseChecker
) -> None:
    slugs = swept("OVERLOADED", test_bodies_above_the_memory_budget_are_overloaded)
    restartable.run("--role", "data")
    scenario = restartable.served_game.scenario()
    incomplete = {slug: _bare(scenario, slug, content=b" " * 1_000)[:-1] for slug in slugs}
    large = _bare(scenario, LARGEST, content=b" " * LARGEST_BYTES)[:-1]
    small = _bare(scenario, "find", content=b" " * SMALL_BYTES)[:-1]
    count = LARGEST_BYTES // 2 // SMALL_BYTES

    async def story() -> None:
        async with _connections(restartable.service) as send:
            await send(large)
            body_bytes = LARGEST_BYTES - 1
            await _until(restartable.service, "hosting_request_bodies_bytes", body_bytes)
            for _ in range(count):
                await send(small)
            body_bytes += count * (SMALL_BYTES - 1)
            await _until(restartable.service, "hosting_request_bodies_bytes", body_bytes)
            codes = await _codes(
                checker, {slug: await send(incomplete[slug]) for slug in incomplete}
            )
            assert codes == dict.fromkeys(incomplete, "OVERLOADED")
            print(f"\n{dict(Counter(codes.values()))}")

    asyncio.run(story())


def _bare(
    scenario: Scenario, slug: str, *, content: bytes | None = None, bearer: str | None = None
) -> bytes:
    method = BY_SLUG[slug]
    example = fill_example(method)
    headers = scenario.headers(example.token)
    if bearer is not None:
        headers["authorization"] = f"Bearer {bearer}"
    if content is None and example.body is not None:
        content = example.body.encode()
    url = f"http://{scenario.service.addresses['http']}{method.template.format(**example.path)}"
    return _written(
        scenario.service.client.build_request(
            method.http_method, url, params=example.query or None, content=content, headers=headers
        )
    )


def _written(request: httpx.Request) -> bytes:
    lines = [f"{request.method} {request.url.raw_path.decode()} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + request.read()


Send = Callable[[bytes], Awaitable[HttpConnection]]


@asynccontextmanager
async def _connections(service: SupervisedService) -> AsyncIterator[Send]:
    host, _, port = service.addresses["http"].rpartition(":")
    created: list[HttpConnection] = []

    async def send(data: bytes) -> HttpConnection:
        connection = await HttpConnection.open((host, int(port)))
        created.append(connection)
        connection.writer.write(data)
        await connection.writer.drain()
        return connection

    try:
        yield send
    finally:
        for connection in created:
            connection.writer.transport.abort()
            await connection.close()


async def _codes(
    checker: ResponseChecker, connections: Mapping[str, HttpConnection], timeout_s: float = WAIT_S
) -> dict[str, str]:
    codes = {}
    async with asyncio.timeout(timeout_s):
        for slug, connection in connections.items():
            answer = await connection.read()
            codes[slug] = checker.check(slug, answer.status, answer.headers, answer.body)
    return codes


async def _until(service: SupervisedService, metric: str, at_least: int) -> None:
    begin = f'{metric}{{door="http"}} '
    end = time.monotonic() + WAIT_S
    while True:
        text = (await asyncio.to_thread(service.probe, "/metrics")).text
        value = float(text.partition(begin)[2].partition("\n")[0])
        if value >= at_least:
            return
        assert time.monotonic() < end, f"{metric} is {value}, not {at_least}"
        await asyncio.sleep(0.01)
