"""Blocked watches over HTTP: what each costs in resident memory of all our processes, how fast a change that concerns
one of them is answered, and one that concerns all. The service has one core, the watchers the other.

Each answer must be a 200 with a newer index than the one that was watched; one whose time was over is asked anew.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import time
from collections.abc import Mapping, Sequence

from bench.asking import Answers, Question, ask_once, share
from bench.machine import Bench
from bench.planes import MODES, Planes, loaded, running
from bench.results import Figure, Result, Run, WrongAnswer, median

NAME = "watches"
COUNT = 10_000
TOKENS = 1_000
"""Who watches, in turn."""
CHANGES = 200
"""Changes that concern one."""
ROUNDS_OF_ALL = 5
FILES = 18_000
_AT_ONCE = 100
"""Watches that begin together: the public door passes on no more than some hundreds at a time."""
_TIMEOUT_S = 60.0
_SETTLE_S = 0.5
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    """Watches of a game each; then all of what the same group has."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < FILES:
        raise WrongAnswer(f"{COUNT} connections need {FILES} open files, {most} are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, most))
    runs: dict[str, list[Run]] = {"one": [], "all": [], "all, own tokens": []}
    with running(bench.scratch("watches")) as planes:
        runs["one"] = [_one(planes)]
    for name, tokens in (("all", 1), ("all, own tokens", COUNT)):
        with running(bench.scratch("watches")) as planes:
            runs[name] = _all(planes, tokens)
    return Result(NAME, _figures(runs), runs)


class _Watcher(Answers):
    """One connection that watches: `changed` has the answer and when it came, once there is a new one."""

    def __init__(self, question: Question, index: str) -> None:
        super().__init__()
        self._question = question
        self._index = index
        self.changed: asyncio.Future[tuple[float, bytes]] = (
            asyncio.get_running_loop().create_future()
        )

    def ask(self) -> None:
        self.send(self._question.sent)

    def again(self, question: Question, index: str) -> None:
        """Watches what comes after an answer."""
        self._question, self._index = question, index
        self.changed = asyncio.get_running_loop().create_future()
        self.ask()

    def on_answer(self, status: bytes, body: bytes) -> None:
        now_s = time.perf_counter()
        if status != b"200" or self._question.expected not in body:
            self._fail(f"a watch was answered {status.decode()} {body[:300]!r}")
        elif f'"index":"{self._index}"'.encode() in body:
            self.ask()
        elif not self.changed.done():
            self.changed.set_result((now_s, body))

    def on_end(self) -> None:
        self._fail("the service closed the connection of a watch")

    def _fail(self, reason: str) -> None:
        if not self.changed.done():
            self.changed.set_exception(WrongAnswer(reason))
            # Of many that fail, one is told.
            self.changed.exception()


def _one(planes: Planes) -> Run:
    """Everybody watches a game of their own; versions are added to some of the games, one after the other."""
    tokens = planes.owner_tokens(TOKENS)
    game_ids = planes.games_at_rest(planes.group_id, COUNT)

    def question(number: int, index: str) -> Question:
        game_id = game_ids[number]
        fields = {"game_id": game_id, "watch_index": index}
        return planes.question("get_game", fields, game_id, tokens[number % TOKENS])

    # Games that never changed have the same index.
    index = str(planes.call("get_game", {"game_id": game_ids[0]})["watch"]["index"])

    async def measure() -> Run:
        await _warm(planes, [question(number, index) for number in range(_AT_ONCE)], index)
        idle_kib = planes.memory_kib()
        watchers, blocked_s = await _watch(
            planes, [question(number, index) for number in range(COUNT)], index
        )
        blocked_kib = planes.memory_kib()
        latencies_s: list[float] = []
        for number in range(0, COUNT, COUNT // CHANGES):
            fields = {
                "game_id": game_ids[number],
                "display_name": "2.0.0",
                "config": {"matchmaker": {"game_modes": MODES}},
            }
            change = planes.question("create_version", fields)
            began_s = time.perf_counter()
            await asyncio.to_thread(ask_once, planes.address, change)
            async with asyncio.timeout(_TIMEOUT_S):
                answered_s, _ = await watchers[number].changed
            latencies_s.append(answered_s - began_s)
        answered = sum(watcher.changed.done() for watcher in watchers)
        if answered != len(latencies_s):
            raise WrongAnswer(
                f"{answered} watches were answered, {len(latencies_s)} were concerned"
            )
        _end(watchers)
        latencies_s.sort()
        return {
            "blocked_s": blocked_s,
            "kib_each": (blocked_kib - idle_kib) / COUNT,
            "idle_mib": idle_kib / 1024,
            "one_p50_ms": share(latencies_s, 0.5) * 1e3,
            "one_p99_ms": share(latencies_s, 0.99) * 1e3,
        }

    return loaded(measure)


def _all(planes: Planes, token_count: int) -> list[Run]:
    """Everybody watches what the group has; then it gets another game."""
    tokens = planes.owner_tokens(token_count)
    names = itertools.count()
    planes.game("first")

    def question(number: int, index: str) -> Question:
        fields = {"watch_index": index}
        return planes.question("get_games", fields, '"games"', tokens[number % token_count])

    async def one_round() -> Run:
        index = str(planes.call("get_games")["watch"]["index"])
        watchers, blocked_s = await _watch(
            planes, [question(number, index) for number in range(COUNT)], index
        )
        name = f"new-{next(names)}"
        fields = {"developer_group_id": planes.group_id, "display_name": "New", "name_id": name}
        change = planes.question("create_game", fields)
        began_s = time.perf_counter()
        await asyncio.to_thread(ask_once, planes.address, change)
        async with asyncio.timeout(_TIMEOUT_S):
            answers = await asyncio.gather(*(watcher.changed for watcher in watchers))
        for _, body in (answers[0], answers[-1]):
            if name not in {game["name_id"] for game in json.loads(body)["games"]}:
                raise WrongAnswer("a watch was answered with what was there before")
        _end(watchers)
        times_s = sorted(answered_s - began_s for answered_s, _ in answers)
        return {"blocked_s": blocked_s, "first_s": times_s[0], "last_s": times_s[-1]}

    return [loaded(one_round) for _ in range(ROUNDS_OF_ALL)]


async def _warm(planes: Planes, questions: Sequence[Question], index: str) -> None:
    """What is only built once does not belong to any watch."""
    watchers, _ = await _watch(planes, questions, index)
    _end(watchers)
    await asyncio.sleep(_SETTLE_S)


async def _watch(
    planes: Planes, questions: Sequence[Question], index: str
) -> tuple[list[_Watcher], float]:
    """Watchers whose requests are all blocked, and how long that took."""
    loop = asyncio.get_running_loop()
    host, _, port = planes.address.rpartition(":")
    began_s = time.perf_counter()
    watchers: list[_Watcher] = []

    async def connect(question: Question) -> _Watcher:
        _, watcher = await loop.create_connection(
            lambda: _Watcher(question, index), host, int(port)
        )
        watcher.ask()
        return watcher

    for start in range(0, len(questions), _AT_ONCE):
        batch = questions[start : start + _AT_ONCE]
        watchers += await asyncio.gather(*map(connect, batch))
        for _ in range(2):
            await _passed(planes)
        if failed := next((one for one in watchers if one.changed.done()), None):
            failed.changed.result()
            raise WrongAnswer("a watch was answered although nothing had changed")
    blocked_s = time.perf_counter() - began_s
    await asyncio.sleep(_SETTLE_S)
    return watchers, blocked_s


async def _passed(planes: Planes) -> None:
    """Returns when a request that was sent later than others is answered: so are they, or blocked."""
    question = planes.question("get_group", {"group_id": planes.group_id})
    await asyncio.to_thread(ask_once, planes.address, question)


def _end(watchers: Sequence[_Watcher]) -> None:
    for watcher in watchers:
        if not watcher.changed.done():
            watcher.changed.cancel()
        watcher.close()


def _figures(runs: Runs) -> list[Figure]:
    one = runs["one"]
    figures = [
        Figure(
            f"{COUNT:,} blocked watches, resident memory each above idle",
            median(one, "kib_each") * 1.024,
            "kB",
            at_most=20,
            note=f"all processes, idle {median(one, 'idle_mib'):.0f} MiB; blocked in "
            f"{median(one, 'blocked_s'):.1f} s; {TOKENS:,} tokens, a game each",
        ),
        Figure(
            f"a change that concerns one of {COUNT:,}, p99",
            median(one, "one_p99_ms"),
            "ms",
            at_most=100,
            note=f"from sending the change, p50 {median(one, 'one_p50_ms'):.1f} ms",
        ),
    ]
    for name, how in (("all", "the same token"), ("all, own tokens", "a token each")):
        figures.append(
            Figure(
                f"a change that concerns all {COUNT:,}, {how}",
                median(runs[name], "last_s"),
                "s",
                at_most=2,
                note=f"first answer after {median(runs[name], 'first_s'):.3f} s",
            )
        )
    return figures
