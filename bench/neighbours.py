"""Response time of a group beside another group that is at its quotas and calls as fast as it can.

Quotas and rate limits are the defaults. The greedy group creates records until its quotas refuse more. Then it repeats
finds, lists, creations and calls with wrong tokens. The measured group calls `find` and `connected` at a fixed rate.
Windows with and without the greedy calls alternate. At last, one address tries only wrong tokens, as fast as it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.http_load import Request, send_all
from bench.machine import LOAD_CORE, ROOT, Bench, loaded, on_core, python
from bench.memory import large_config
from bench.players import MODE, Players
from bench.processes import end
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import DEFAULT_LIMITS, Service, running

NAME: Final = "neighbours"
_CALLS: Final = 2_000
"""Prepared calls of the greedy group, which its connections repeat in random order."""
_RUNNING: Final = 60
"""Different versions that run, so that they fit into the quota `configuration_bytes`."""
_WINDOW_S: Final = 10.0
_FINDS_PER_S: Final = 15.0
_CONNECTED_PER_S: Final = 100.0
_LOBBIES: Final = 20
_FIND_LOBBIES: Final = 3
"""Room for all finds of a run. They have a namespace of their own, because `find` fills one lobby after another."""
_STATE_BYTES: Final = 600
"""State of each lobby, so that a full page has as many lobbies as its limit in bytes allows."""
_HOUR_MS: Final = 3_600_000
_ANY_NUMBER: Final = 0xFFFF_FFFF
_ADDRESSES: Final = 8
"""Of the greedy group."""
_CONNECTIONS: Final = 64
_WRONG_TOKENS: Final = 100_000
_WRONG_CONNECTIONS: Final = 800
"""After a 429, the next request of the connection waits for 100 ms."""
_WRONG_PER_S: Final = 5_000
_BURST_S: Final = 2.0
"""Time in which an address uses up its burst of wrong tokens."""
_MORE_NICE: Final = "15"
"""Both loads share a core. The measured one runs first, so that only the service delays its responses."""
Fields = dict[str, Any]


def run(bench: Bench) -> Result:
    with running(bench.scratch("neighbours"), limits=DEFAULT_LIMITS) as service:
        measured = _Measured(service)
        greedy = _Greedy(service)
        greedy.fill()
        calls = bench.scratch("greedy.json")
        calls.write_text(json.dumps([call.raw.decode() for call in greedy.calls(bench.seed)]))
        runs = interleaved({"alone": measured.window, "beside": lambda: _beside(measured, calls)})
        runs["wrong tokens"] = [_wrong_tokens(service, calls)]
        calls.unlink()
    return Result(NAME, _figures(runs, greedy.use), runs)


def _beside(measured: _Measured, calls: Path) -> Run:
    with _calling(measured.service.address, calls, _ADDRESSES, _CONNECTIONS) as responses:
        run = measured.window()
    greedy_per_s = sum(responses().values()) / _WINDOW_S
    return (
        run
        | {"greedy_per_s": greedy_per_s}
        | {f"status_{name}": n for name, n in responses().items()}
    )


def _wrong_tokens(service: Service, calls: Path) -> Run:
    def look_ups() -> float:
        return service.metric("hosting_front_passed_total", operation="inspect_token")

    tokens = (f"cloud_{number}" for number in range(_WRONG_TOKENS))
    requests = [service.request("inspect_token", token=token).raw.decode() for token in tokens]
    calls.write_text(json.dumps(requests))
    with _calling(service.address, calls, 1, _WRONG_CONNECTIONS) as responses:
        time.sleep(_BURST_S)
        before = look_ups()
        time.sleep(_WINDOW_S)
        look_ups_per_s = (look_ups() - before) / _WINDOW_S
    wrong_per_s = sum(responses().values()) / (_BURST_S + _WINDOW_S)
    if wrong_per_s < _WRONG_PER_S:
        raise WrongAnswer(f"only {wrong_per_s:.0f} wrong tokens/s")
    return {"wrong_per_s": wrong_per_s, "look_ups_per_s": look_ups_per_s}


class _Measured:
    def __init__(self, service: Service) -> None:
        self.service = service
        players = Players(service, 2)
        connecting, finding = players.namespaces
        self._lobbies = players.attach([connecting] * _LOBBIES)
        players.attach([finding] * _FIND_LOBBIES)
        self._players = players
        self._find = service.request("find", {"game_modes": [MODE]}, token=finding.service_token)

    def window(self) -> Run:
        finds = [self._find] * int(_FINDS_PER_S * _WINDOW_S)
        slots = int(_CONNECTED_PER_S * _WINDOW_S) // _LOBBIES
        connected = [
            self.service.request("connected", {"player_token": token}, token=lobby.lobby_token)
            for lobby, tokens in zip(
                self._lobbies, self._players.reserve(self._lobbies, slots), strict=True
            )
            for token in tokens
        ]

        async def both() -> Sequence[Run]:
            address = self.service.address
            results = await asyncio.gather(
                send_all(address, finds, 4, _FINDS_PER_S),
                send_all(address, connected, 16, _CONNECTED_PER_S),
            )
            return [one.run for one in results]

        find, connect = loaded(both)
        return {f"find_{name}": value for name, value in find.items()} | {
            f"connected_{name}": value for name, value in connect.items()
        }


class _Greedy:
    """The group at its quotas."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._names = itertools.count()
        self._tokens = service.owner_tokens(16)
        self._group_id = service.call("create_group", {"display_name": "Greedy"})["group_id"]
        self._game_id = service.call("create_game", self._new_game())["game_id"]
        self._version_ids: list[str] = []
        self._service_tokens: list[str] = []
        self._namespace_ids: list[str] = []
        self.use: dict[str, int] = {}

    def fill(self) -> None:
        self._until_refused("create_version", lambda: self._named(config=_config(next(self._names))),
                            lambda one: self._version_ids.append(str(one["version_id"])))  # fmt: skip
        versions = itertools.cycle(self._version_ids[:_RUNNING])
        self._until_refused("create_namespace", lambda: self._named(name_id=self._name(), version_id=next(versions)),
                            lambda one: self._namespace_ids.append(str(one["namespace_id"])))  # fmt: skip
        environment = {"environment_id": self._namespace_ids[0]}
        content = {"path": "x", "content_length": 1}
        with ThreadPoolExecutor(8) as pool:
            tasks = [
                pool.submit(self._until_refused, slug, fields, keep)
                for slug, fields, keep in (
                    ("create_game", self._new_game, _ignore),
                    ("create_game_token", self._of_game, _ignore),
                    (
                        "create_service_token",
                        lambda: self._of_game(**environment),
                        lambda one: self._service_tokens.append(str(one["token"])),
                    ),
                    (
                        "create_game_build",
                        lambda: self._of_game(
                            display_name="x", image_file=content, kind="archive", compression="none"
                        ),
                        _ignore,
                    ),
                    (
                        "create_site",
                        lambda: self._of_game(display_name="x", files=[content]),
                        _ignore,
                    ),
                    (
                        "prepare_avatar",
                        lambda: self._of_game(**content | {"path": "x.png"}),
                        _ignore,
                    ),
                    ("add_domain", self._new_domain, _ignore),
                )
            ]
            for task in tasks:
                task.result()
        self._service.wait_held()
        limits = {"lobby_count_max": _ANY_NUMBER, "max_players": _ANY_NUMBER}
        self._service.call(
            "set_mm_config", self._of_game(namespace_id=self._namespace_ids[0], **limits)
        )
        lobby_tokens: list[str] = []
        self._until_refused(
            "attach", self._new_lobby, lambda one: lobby_tokens.append(str(one["lobby_token"]))
        )
        for slug, fields in (("ready", {}), ("set_state", {"text": "x" * _STATE_BYTES})):
            self._service.call_all(
                [self._service.request(slug, fields, token=one) for one in lobby_tokens]
            )
        quotas = self._service.call("get_quotas", {"group_id": self._group_id})["quotas"]
        self.use = {row["quota"]: row["use"] for row in quotas}

    def calls(self, seed: int) -> Sequence[Request]:
        chance = random.Random(seed)
        find = {"game_modes": ["mode-00"], "prevent_auto_create_lobby": True}
        kinds: list[Callable[[], tuple[str, Fields, str]]] = [
            lambda: ("find", find, chance.choice(self._service_tokens)),
            lambda: ("list", {"include_state": "true"}, chance.choice(self._service_tokens)),
            lambda: ("create_version", self._named(config={}), self._any(chance)),
            lambda: ("create_game", self._new_game(), self._any(chance)),
            lambda: ("attach", self._new_lobby(), self._any(chance)),
            lambda: ("list_versions", {"game_id": self._game_id, "limit": 100}, self._any(chance)),
            lambda: ("list_namespaces", {"game_id": self._game_id}, self._any(chance)),
            lambda: ("get_quotas", {"group_id": self._group_id}, self._any(chance)),
            lambda: ("get_audit", {"group_id": self._group_id}, self._any(chance)),
            lambda: ("get_games", {}, f"cloud_{chance.randbytes(32).hex()}"),
            lambda: ("connected", {"player_token": "x" * 64}, "lobby_wrong"),
        ]
        wanted = [chance.choice(kinds)() for _ in range(_CALLS)]
        return [self._service.request(slug, fields, token=token) for slug, fields, token in wanted]

    def _any(self, chance: random.Random) -> str:
        return chance.choice(self._tokens)

    def _name(self) -> str:
        return f"greedy-{next(self._names)}"

    def _named(self, **fields: Any) -> Fields:
        return self._of_game(display_name=self._name(), **fields)

    def _of_game(self, **fields: Any) -> Fields:
        return {"game_id": self._game_id, **fields}

    def _new_game(self) -> Fields:
        name = self._name()
        return {"developer_group_id": self._group_id, "display_name": name, "name_id": name}

    def _new_domain(self) -> Fields:
        domain = f"greedy-{next(self._names)}.example.com"
        return self._of_game(namespace_id=self._namespace_ids[0], domain=domain)

    def _new_lobby(self) -> Fields:
        return self._of_game(
            namespace_id=self._namespace_ids[0],
            game_mode="mode-00",
            ports={"game": {"address": "127.0.0.1", "port": 7777}},
        )

    def _until_refused(
        self, slug: str, fields: Callable[[], Fields], keep: Callable[[Any], None]
    ) -> None:
        tokens = itertools.cycle(self._tokens)
        while True:
            wanted = fields()
            request = self._service.request(slug, wanted, token=next(tokens))
            status, body = _answer(self._service, request)
            if status in (429, 503):
                time.sleep(0.1)
            elif status == 409 and b"QUOTA_EXCEEDED" in body:
                return
            elif status == 200:
                keep(json.loads(body))
            else:
                raise WrongAnswer(f"{slug}: {status} {body[:400].decode()}")


def _config(number: int) -> Any:
    """Returns a large configuration without heartbeats."""
    config = large_config(number)
    for mode in config["matchmaker"]["game_modes"].values():
        mode["heartbeat_timeout"] = _HOUR_MS
    return config


def _ignore(_: Any) -> None:
    pass


def _answer(service: Service, request: Request) -> tuple[int, bytes]:
    host, _, port = service.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request.raw)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, response.read()


@contextlib.contextmanager
def _calling(
    address: str, calls: Path, sources: int, connections: int
) -> Iterator[Callable[[], Mapping[str, int]]]:
    """Repeats the calls until the end of the block. Yields a function that then returns the responses by status."""
    process = subprocess.Popen(
        [
            "nice",
            "-n",
            _MORE_NICE,
            *python(
                "-m", "bench.greedy_calls", address, str(calls), str(sources), str(connections)
            ),
        ],
        cwd=ROOT,
        preexec_fn=on_core(LOAD_CORE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    counts: dict[str, int] = {}
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"started\n":
            raise WrongAnswer("the greedy calls did not start")
        yield lambda: counts
        output, _ = process.communicate(timeout=30)
        counts |= json.loads(output)
    finally:
        end(process)


def _figures(runs: Mapping[str, Sequence[Run]], use: Mapping[str, int]) -> list[Figure]:
    alone, beside = runs["alone"], runs["beside"]
    statuses = {
        name: round(median(beside, name)) for name in beside[0] if name.startswith("status_")
    }
    figures = []
    for call in ("find", "connected"):
        p99_ms, alone_ms = (median(one, f"{call}_p99_us") / 1e3 for one in (beside, alone))
        figures.append(
            Figure(
                f"`{call}` of a group beside another one at its quotas, p99",
                p99_ms,
                "ms",
                at_most=max(20.0, 2 * alone_ms),
                note=f"alone {alone_ms:.1f} ms; {median(beside, 'greedy_per_s'):,.0f} greedy calls/s, "
                f"{statuses}; {dict(use)}",
            )
        )
    (wrong,) = runs["wrong tokens"]
    figures.append(
        Figure(
            "look-ups of the wrong tokens of one client address, at least 5,000/s",
            wrong["look_ups_per_s"],
            "/s",
            at_most=10.0,
            note=f"{wrong['wrong_per_s']:,.0f} wrong tokens/s",
        )
    )
    return figures
