"""Parked long polls over HTTP: memory of each, and response time of a change for one watcher and for all.

Load: the service on one core, the watchers on the other. A response must be a 200 with a newer index. Watches that time
out are repeated. Changes for one watcher have five rounds, each with a new service, because caches of an earlier round
would distort the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import time
from collections.abc import Iterator, Mapping, Sequence

from bench.http_load import Request, ResponseReader, send_one, share
from bench.machine import Bench, loaded
from bench.processes import open_files
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, median
from bench.service import MODES, Service, running

NAME = "watches"
COUNT = 10_000
TOKENS = 1_000
CHANGES = 200
FILES = 20_000
"""Open files that the hard limit must allow for the load, and also for the data plane with its reserve."""
ADDRESSES = 4
"""Number of client addresses, because one address may have at most half of the server's connections."""
_AT_ONCE = 100
"""Watches that begin together. The public server forwards only some hundreds at a time."""
_TIMEOUT_S = 60.0
_SETTLE_S = 0.5
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < FILES:
        raise WrongAnswer(
            f"{COUNT:,} connections need {FILES:,} open files, the hard limit is {most:,} (ulimit -Hn)"
        )
    runs: dict[str, list[Run]] = {"one": [], "all": [], "all, own tokens": []}
    for _ in range(ROUNDS):
        with running(bench.scratch("watches")) as service:
            runs["one"].append(_one(service))
    for name, tokens in (("all", 1), ("all, own tokens", COUNT)):
        with running(bench.scratch("watches")) as service:
            runs[name] = _all(service, tokens)
    return Result(NAME, _figures(runs), runs)


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Raises the limit of open files to the hard limit, but not for child processes."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


class _Watcher(ResponseReader):
    def __init__(self, request: Request, index: str) -> None:
        super().__init__()
        self._request = request
        self._index = index
        self.changed: asyncio.Future[tuple[float, bytes]] = (
            asyncio.get_running_loop().create_future()
        )

    def send_request(self) -> None:
        self.send(self._request.raw)

    def again(self, request: Request, index: str) -> None:
        self._request, self._index = request, index
        self.changed = asyncio.get_running_loop().create_future()
        self.send_request()

    def on_response(self, status: bytes, body: bytes) -> None:
        now_s = time.perf_counter()
        if status != b"200" or self._request.expected not in body:
            self._fail(f"a watch was answered {status.decode()} {body[:300]!r}")
        elif f'"index":"{self._index}"'.encode() in body:
            self.send_request()
        elif not self.changed.done():
            self.changed.set_result((now_s, body))

    def on_end(self) -> None:
        self._fail("the service closed the connection of a watch")

    def _fail(self, reason: str) -> None:
        if not self.changed.done():
            self.changed.set_exception(WrongAnswer(reason))
            # Marks the exception as read, because only the first of many failures is reported.
            self.changed.exception()


def _one(service: Service) -> Run:
    tokens = service.owner_tokens(TOKENS)
    game_ids = service.games_at_rest(service.group_id, COUNT)

    def request(number: int, index: str) -> Request:
        game_id = game_ids[number]
        fields = {"game_id": game_id, "watch_index": index}
        return service.request("get_game", fields, game_id, tokens[number % TOKENS])

    # Games without changes have the same index.
    index = str(service.call("get_game", {"game_id": game_ids[0]})["watch"]["index"])

    async def measure() -> Run:
        await _warm(service, [request(number, index) for number in range(_AT_ONCE)], index)
        idle_kib = service.idle_memory_kib()
        watchers, parked_s = await _watch(
            service, [request(number, index) for number in range(COUNT)], index
        )
        parked_kib = service.memory_kib()
        files = max(map(open_files, service.pids()))
        latencies_s: list[float] = []
        for number in range(0, COUNT, COUNT // CHANGES):
            fields = {
                "game_id": game_ids[number],
                "display_name": "2.0.0",
                "config": {"matchmaker": {"game_modes": MODES}},
            }
            change = service.request("create_version", fields)
            began_s = time.perf_counter()
            await asyncio.to_thread(send_one, service.address, change)
            async with asyncio.timeout(_TIMEOUT_S):
                answered_s, _ = await watchers[number].changed
            latencies_s.append(answered_s - began_s)
        answered = sum(watcher.changed.done() for watcher in watchers)
        if answered != len(latencies_s):
            raise WrongAnswer(f"{answered} watches were answered instead of {len(latencies_s)}")
        _end(watchers)
        latencies_s.sort()
        return {
            "parked_s": parked_s,
            "kib_each": (parked_kib - idle_kib) / COUNT,
            "idle_mib": idle_kib / 1024,
            "open_files": files,
            "one_p50_ms": share(latencies_s, 0.5) * 1e3,
            "one_p99_ms": share(latencies_s, 0.99) * 1e3,
        }

    with _many_files():
        return loaded(measure)


def _all(service: Service, token_count: int) -> list[Run]:
    tokens = service.owner_tokens(token_count)
    names = itertools.count()
    service.game("first")

    def request(number: int, index: str) -> Request:
        fields = {"watch_index": index}
        return service.request("get_games", fields, '"games"', tokens[number % token_count])

    async def one_round() -> Run:
        index = str(service.call("get_games")["watch"]["index"])
        watchers, parked_s = await _watch(
            service, [request(number, index) for number in range(COUNT)], index
        )
        name = f"new-{next(names)}"
        fields = {"developer_group_id": service.group_id, "display_name": "New", "name_id": name}
        change = service.request("create_game", fields)
        began_s = time.perf_counter()
        await asyncio.to_thread(send_one, service.address, change)
        async with asyncio.timeout(_TIMEOUT_S):
            answers = await asyncio.gather(*(watcher.changed for watcher in watchers))
        for _, body in (answers[0], answers[-1]):
            if name not in {game["name_id"] for game in json.loads(body)["games"]}:
                raise WrongAnswer("a watch was answered with an old state")
        _end(watchers)
        times_s = sorted(answered_s - began_s for answered_s, _ in answers)
        return {"parked_s": parked_s, "first_s": times_s[0], "last_s": times_s[-1]}

    with _many_files():
        return [loaded(one_round) for _ in range(ROUNDS)]


async def _warm(service: Service, requests: Sequence[Request], index: str) -> None:
    """Sends requests beforehand, so that one-time allocations do not count as memory of watches."""
    watchers, _ = await _watch(service, requests, index)
    _end(watchers)
    await asyncio.sleep(_SETTLE_S)


async def _watch(
    service: Service, requests: Sequence[Request], index: str
) -> tuple[list[_Watcher], float]:
    """Starts watchers. Returns them when all requests are parked, with the seconds that this took."""
    loop = asyncio.get_running_loop()
    host, _, port = service.address.rpartition(":")
    began_s = time.perf_counter()
    watchers: list[_Watcher] = []

    async def connect(number: int) -> _Watcher:
        client = f"127.0.0.{1 + number % ADDRESSES}"
        _, watcher = await loop.create_connection(
            lambda: _Watcher(requests[number], index), host, int(port), local_addr=(client, 0)
        )
        watcher.send_request()
        return watcher

    for start in range(0, len(requests), _AT_ONCE):
        batch = range(start, min(start + _AT_ONCE, len(requests)))
        watchers += await asyncio.gather(*map(connect, batch))
        for _ in range(2):
            await _passed(service)
        if failed := next((one for one in watchers if one.changed.done()), None):
            failed.changed.result()
            raise WrongAnswer("a watch was answered although nothing had changed")
    parked_s = time.perf_counter() - began_s
    await asyncio.sleep(_SETTLE_S)
    return watchers, parked_s


async def _passed(service: Service) -> None:
    """Waits for the response of a later request, so that all earlier requests are processed."""
    request = service.request("get_group", {"group_id": service.group_id})
    await asyncio.to_thread(send_one, service.address, request)


def _end(watchers: Sequence[_Watcher]) -> None:
    for watcher in watchers:
        if not watcher.changed.done():
            watcher.changed.cancel()
        watcher.close()


def _figures(runs: Runs) -> list[Figure]:
    one = runs["one"]
    p99s_ms = [float(run["one_p99_ms"]) for run in one]
    figures = [
        Figure(
            f"{COUNT:,} parked watches, resident memory each above idle",
            median(one, "kib_each") * 1.024,
            "kB",
            at_most=6,
            note=f"all processes, idle {median(one, 'idle_mib'):.0f} MiB; parked in "
            f"{median(one, 'parked_s'):.1f} s; {TOKENS:,} tokens, a game each; "
            f"{max(run['open_files'] for run in one):,} open files of one process",
        ),
        Figure(
            f"a change that concerns one of {COUNT:,}, p99",
            median(one, "one_p99_ms"),
            "ms",
            at_most=100,
            note=f"from sending the change, p50 {median(one, 'one_p50_ms'):.1f} ms; {len(one)} rounds of "
            f"{CHANGES}, p99 {min(p99s_ms):.1f} to {max(p99s_ms):.1f} ms",
        ),
    ]
    for name, how in (("all", "the same token"), ("all, own tokens", "a token each")):
        figures.append(
            Figure(
                f"a change that concerns all {COUNT:,}, {how}",
                median(runs[name], "last_s"),
                "s",
                at_most=0.5,
                note=f"first answer after {median(runs[name], 'first_s'):.3f} s",
            )
        )
    return figures
