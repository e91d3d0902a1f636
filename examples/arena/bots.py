"""Bots for the arena, for a time, until stopped, or while people play.

After `--seconds`, the exit status is 1 if a bot did not join or received too few snapshots.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import signal
import sys
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from .hosting import HostingClient, ServiceAway, ServiceRefused, retry_pauses_s
from .settings import PORT_NAME
from .world import DOWN, LEFT, RIGHT, TICK_HZ, UP

# The service answers a find that starts a lobby after at most 45 s.
FIND_TIMEOUT_S = 50.0
WELCOME_TIMEOUT_S = 15.0
SNAPSHOT_BYTES_MAX = 1 << 20
DECIDE_EVERY_TICKS = 3
COME_BACK_AFTER_S = 2.0
PEOPLE_CHECK_S = 1.0
# The game server releases the slot of a closed socket at once. Until then it counts as a person.
RELEASE_S = 5.0
# Smallest fraction of TICK_HZ snapshots a second that is no problem.
SNAPSHOTS_PART_MIN = 0.75
_COLUMNS = ("bot", "name", "joined", "played", "snap/s", "score", "problem")


@dataclass(slots=True)
class Report:
    bot: int
    joined: bool = False
    name: str = ""
    player_id: int = 0
    lobby_id: str = ""
    played_s: float = 0.0
    snapshots: int = 0
    inputs: int = 0
    score: int = 0
    distance: float = 0.0
    close_code: int | None = None
    error: str = ""

    @property
    def snapshots_per_s(self) -> float:
        return self.snapshots / self.played_s if self.played_s else 0.0

    def problem(self) -> str:
        if self.error or not self.joined:
            return self.error or "did not join"
        if self.snapshots_per_s < TICK_HZ * SNAPSHOTS_PART_MIN:
            return f"only {self.snapshots_per_s:.1f} snapshots a second"
        return ""


class Mind:
    """Chooses the direction of a bot, usually to the nearest gem."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed = seed
        self._whim_dirs = 0
        self._whim_ticks = 0
        self._last: tuple[int, int] | None = None

    def decide(self, me: list[int], others: list[list[int]], gems: list[list[int]]) -> int:
        here = (me[1], me[2])
        is_stuck = self._last is not None and math.dist(here, self._last) < 3
        self._last = here
        if self._whim_ticks > 0:
            self._whim_ticks -= 1
            return self._whim_dirs
        if is_stuck or self._random.random() < 0.03:
            self._whim_dirs = self._random.choice((UP, DOWN, LEFT, RIGHT, UP | LEFT, DOWN | RIGHT))
            self._whim_ticks = self._random.randint(3, 9)
            return self._whim_dirs
        targets = others if others and self._random.random() < 0.1 else gems
        if not targets:
            return 0
        target = min(targets, key=lambda it: math.dist(here, (it[1], it[2])) * self._distaste(it))
        return _towards(here, (target[1], target[2]))

    def _distaste(self, target: list[int]) -> float:
        """Weights targets by bot, so that not all bots run for the same gem."""
        return 1 + (target[0] * 7919 + self._seed * 104729) % 8 / 4


def _towards(here: tuple[int, int], there: tuple[int, int]) -> int:
    dx, dy = there[0] - here[0], there[1] - here[1]
    dirs = 0
    if abs(dx) > 8:
        dirs |= RIGHT if dx > 0 else LEFT
    if abs(dy) > 8:
        dirs |= DOWN if dy > 0 else UP
    return dirs


class Bot:
    def __init__(
        self,
        number: int,
        hosting: HostingClient,
        mode: str,
        seed: int,
        seconds: float | None = None,
    ) -> None:
        self.report = Report(number)
        self._hosting = hosting
        self._mode = mode
        self._seconds = seconds
        self._mind = Mind(seed * 1000 + number)
        self._find_key = str(uuid.uuid4())
        self.is_playing = False

    async def play(self, stop: asyncio.Event) -> Report:
        """Plays one game, for `seconds` after the join, or until `stop` is set or the socket closes."""
        self.report = Report(self.report.bot)
        stopped = asyncio.create_task(stop.wait())
        game = asyncio.create_task(self._game())
        try:
            await asyncio.wait({stopped, game}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, game):
                task.cancel()
            await asyncio.gather(stopped, game, return_exceptions=True)
        if not game.cancelled():
            game.result()
        return self.report

    async def _game(self) -> None:
        report = self.report
        is_place_gone = False
        try:
            placement = await find(self._hosting, self._mode, self._find_key)
            address = socket_address(placement)
            async with connect(
                address, compression=None, max_size=SNAPSHOT_BYTES_MAX, proxy=None
            ) as connection:
                await self._enter(connection)
                await self._follow(connection)
        except ConnectionClosed as closed:
            received = closed.rcvd
            report.close_code = received.code if received else 1006
            reason = received.reason if received else "connection lost"
            report.error = f"closed with {report.close_code}: {reason}"
            is_place_gone = received is not None
        except KeyError as missing:
            report.error = f"an answer without {missing}"
        except (ServiceAway, ServiceRefused, WebSocketException, OSError) as error:
            report.error = f"{type(error).__name__}: {error}"
            is_place_gone = isinstance(error, ServiceRefused)
        finally:
            # find with the same key returns the same slot. With a new key, each attempt to reach an
            # unreachable server would reserve another slot.
            if report.joined or is_place_gone:
                self._find_key = str(uuid.uuid4())

    async def _enter(self, connection: ClientConnection) -> None:
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            welcome = json.loads(await connection.recv())
        self.report.name = welcome["name"]
        self.report.player_id = welcome["id"]
        self.report.lobby_id = welcome["lobby_id"]
        self.report.joined = True

    async def _follow(self, connection: ClientConnection) -> None:
        started_s = time.monotonic()
        self.is_playing = True
        try:
            async with asyncio.timeout(self._seconds) as playing:
                await self._steer_forever(connection)
        except TimeoutError:
            if not playing.expired():
                raise
        finally:
            self.is_playing = False
            self.report.played_s = time.monotonic() - started_s
            await connection.close()

    async def _steer_forever(self, connection: ClientConnection) -> None:
        report = self.report
        dirs_sent, place = -1, None
        while True:
            message = json.loads(await connection.recv())
            if message["type"] != "state":
                continue
            report.snapshots += 1
            me, others = _me_and_others(message["players"], report.player_id)
            if me is None:
                continue
            report.score = me[3]
            if place is not None:
                report.distance += math.dist(place, (me[1], me[2]))
            place = (me[1], me[2])
            if message["tick"] % DECIDE_EVERY_TICKS:
                continue
            dirs = self._mind.decide(me, others, message["gems"])
            if dirs != dirs_sent:
                report.inputs += 1
                await connection.send(json.dumps({"seq": report.inputs, "dirs": dirs}))
                dirs_sent = dirs


def _me_and_others(
    players: list[list[int]], player_id: int
) -> tuple[list[int] | None, list[list[int]]]:
    me = next((player for player in players if player[0] == player_id), None)
    return me, [player for player in players if player[0] != player_id]


async def find(hosting: HostingClient, mode: str, idempotency_key: str) -> Any:
    """Finds a lobby. Repeats the request under one key while the service is unavailable."""
    pauses = retry_pauses_s()
    body = json.dumps({"game_modes": [mode]}).encode()
    deadline_s = time.monotonic() + FIND_TIMEOUT_S
    while True:
        try:
            return await hosting.call(
                "POST",
                "/matchmaker/lobbies/find",
                body,
                idempotency_key=idempotency_key,
                timeout_s=FIND_TIMEOUT_S,
            )
        except ServiceAway as away:
            pause_s = max(pauses.take(), away.retry_after_s)
            if time.monotonic() + pause_s >= deadline_s:
                raise
            await asyncio.sleep(pause_s)


def socket_address(placement: Any) -> str:
    port = placement["ports"][PORT_NAME]
    scheme = "wss" if port["is_tls"] else "ws"
    return f"{scheme}://{port['host']}/play?token={quote(placement['player']['token'])}"


async def run_bots(
    api_url: str,
    public_token: str,
    mode: str,
    count: int,
    seed: int,
    seconds: float,
    stop: asyncio.Event,
) -> list[Report]:
    hosting = HostingClient(api_url, public_token, calls_at_once=min(count, 32))
    try:
        bots = [Bot(number, hosting, mode, seed, seconds) for number in range(1, count + 1)]
        return list(await asyncio.gather(*(bot.play(stop) for bot in bots)))
    finally:
        hosting.close()


async def _play_until(bot: Bot, stop: asyncio.Event) -> None:
    while not stop.is_set():
        report = await bot.play(stop)
        if report.error and not stop.is_set():
            print(f"bot {report.bot}: {report.error}; reconnecting", file=sys.stderr, flush=True)
            await _wait(stop, COME_BACK_AFTER_S)


async def _wait(stop: asyncio.Event, at_most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await stop.wait()


class Companions:
    """Bots that join after a person, and leave `alone_s` after the last person.

    A lobby with bots never becomes idle, so that the service would never stop its game server.
    """

    def __init__(self, hosting: HostingClient, mode: str, bots: list[Bot], alone_s: float) -> None:
        self._hosting = hosting
        self._mode = mode
        self._bots = bots
        self._alone_s = alone_s

    async def play(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if await self._people() > 0:
                await self._play_together(stop)
                await _wait(stop, RELEASE_S)
            else:
                await _wait(stop, PEOPLE_CHECK_S)

    async def _play_together(self, stop: asyncio.Event) -> None:
        leave = asyncio.Event()
        games = [asyncio.create_task(_play_until(bot, leave)) for bot in self._bots]
        last_seen_s = time.monotonic()
        while not stop.is_set() and time.monotonic() - last_seen_s < self._alone_s:
            await _wait(stop, min(PEOPLE_CHECK_S, self._alone_s))
            if await self._people() > 0:
                last_seen_s = time.monotonic()
        leave.set()
        await asyncio.gather(*games)

    async def _people(self) -> int:
        """Returns the number of connected players that are no bots, or 0 if it is unknown."""
        try:
            statistics = await self._hosting.call("GET", "/matchmaker/players/statistics", b"")
        except (ServiceAway, ServiceRefused):
            return 0
        mode = statistics["game_modes"].get(self._mode, {})
        return int(mode.get("player_count", 0)) - sum(bot.is_playing for bot in self._bots)


async def _main(arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    token = arguments.token_file.read_text().strip()
    if arguments.seconds == 0:
        hosting = HostingClient(arguments.api, token)
        try:
            bots = [
                Bot(number, hosting, arguments.mode, arguments.seed)
                for number in range(1, arguments.count + 1)
            ]
            if arguments.with_people is None:
                await asyncio.gather(*(_play_until(bot, stop) for bot in bots))
            else:
                companions = Companions(hosting, arguments.mode, bots, arguments.with_people)
                await companions.play(stop)
        finally:
            hosting.close()
        return 0
    reports = await run_bots(
        arguments.api,
        token,
        arguments.mode,
        arguments.count,
        arguments.seed,
        arguments.seconds,
        stop,
    )
    _print(reports, arguments.json)
    return 1 if any(report.problem() for report in reports) else 0


def _print(reports: list[Report], as_json: bool) -> None:
    if as_json:
        rows = [
            asdict(report)
            | {"snapshots_per_s": report.snapshots_per_s, "problem": report.problem()}
            for report in reports
        ]
        print(json.dumps(rows))
        return
    print("{:>4} {:<16} {:<6} {:>8} {:>7} {:>6}  {}".format(*_COLUMNS))
    for report in reports:
        print(
            f"{report.bot:>4} {report.name:<16} {'yes' if report.joined else 'no':<6} "
            f"{report.played_s:>7.1f}s {report.snapshots_per_s:>7.1f} {report.score:>6}  "
            f"{report.problem()}"
        )


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples.arena.bots", description=__doc__)
    parser.add_argument("--api", required=True, help="address of the hosting service")
    parser.add_argument(
        "--token-file", required=True, type=Path, help="file that holds a public (pub_) token"
    )
    parser.add_argument("--mode", default="arena", help="game mode")
    parser.add_argument("--count", type=int, default=4, help="how many bots")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of each bot after its join; 0: until stopped"
    )
    parser.add_argument(
        "--with-people",
        type=float,
        metavar="SECONDS",
        help="join after a person, and leave this time after the last person; needs --seconds 0",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what the bots decide")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    arguments = parser.parse_args(argv)
    if arguments.with_people is not None and arguments.seconds != 0:
        parser.error("--with-people needs --seconds 0")
    return arguments


def main(argv: list[str] | None = None) -> int:
    return asyncio.run(_main(_arguments(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
