"""Finds with tags, refused requests, pages of the lobby list and mock finds, as usual clients send them.

Load: a closed loop of 256 connections. Baseline: nginx that answers the same request with a fixed body, which has the
size of the page for the lobby list.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench import proxies
from bench.http_load import send_one
from bench.load import HTTP, PLACEMENT_LOBBIES, Tokens, run_load
from bench.machine import Bench
from bench.players import MODE, SLOTS, Players
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running

NAME: Final = "requests"
_COUNT: Final = 64_000
_PAGES: Final = 16_000
_MOCKS: Final = 8_000
_PAGE: Final = 100
_MAPS: Final = ("harbor", "desert", "forest", "castle")
_RANKS: Final = ("bronze", "silver", "gold", "platinum", "diamond")
_TAGS: Final = tuple(itertools.product(_MAPS, _RANKS))
_FULL: Final = "MATCHMAKER_LOBBY_FULL"
_USED: Final = "PLAYER_TOKEN_CONSUMED"


def run(bench: Bench) -> Result:
    install = proxies.missing()
    if install is not None:
        return Result(NAME, [], {}, {"skipped": f"against nginx: {install}"})
    with running(bench.scratch("requests")) as service:
        players = Players(service)
        runs = {
            **_finds_with_tags(bench, players),
            **_full_lobby(bench, players),
            **_used_tokens(bench, players),
            **_pages(bench, players),
            "mock find": _mock_finds(bench, players),
        }
        players.check_recorded()
    figures = [
        _figure(runs, "find with tags", "`find` of a browser with two tags, 1,000 lobbies", 0.45),
        _figure(runs, "full lobby", "refused `join` of a browser, full lobby", 0.5),
        _figure(runs, "used token", "refused `connected` of a lobby server, used token", 0.5),
        _figure(runs, "page", f"`list` of a browser, page of {_PAGE} lobbies", 0.3),
        Figure(
            "`find` of a browser with a `dev_` token, which Python answers",
            median(runs["mock find"], "answers_per_s"),
            "requests/s",
            note=f"{median(runs['mock find'], 'server_cpu_us_per_answer'):.0f} µs of all processes",
        ),
    ]
    return Result(NAME, figures, runs)


def _figure(runs: dict[str, list[Run]], name: str, what: str, at_least: float) -> Figure:
    ours, bare = runs[name], runs[f"{name} peer"]
    rate, bare_rate = median(ours, "answers_per_s"), median(bare, "answers_per_s")
    return Figure(
        f"{what}, against nginx with a fixed body",
        rate / bare_rate,
        "of its rate",
        at_least=at_least,
        note=f"{rate:,.0f}/s against {bare_rate:,.0f}/s; "
        f"{median(ours, 'server_cpu_us_per_answer'):.1f} µs of all processes against "
        f"{median(bare, 'server_cpu_us_per_answer'):.1f} µs",
    )


def _write(plan: Path, lines: Iterator[str], count: int) -> Path:
    plan.write_text("".join(f"{line}\n" for line in itertools.islice(lines, count)))
    return plan


def _compared(
    bench: Bench, name: str, peer_plan: Path, ours: Callable[[], Run], body: str = "{}"
) -> dict[str, list[Run]]:
    with proxies.nginx(bench, body, "application/json") as nginx:
        peer = partial(run_load, bench, HTTP, nginx.address, peer_plan, nginx.cpu_s)
        return interleaved({f"{name} peer": peer, name: ours})


def _run_plan(bench: Bench, service: Service, plan: Path) -> Run:
    run = run_load(bench, HTTP, str(service.ready["http"]), plan, service.cpu_s)
    if run["rays"] != run["answers"]:
        raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
    return run


def _finds_with_tags(bench: Bench, players: Players) -> dict[str, list[Run]]:
    wanted = (
        f"find_with_tags {players.public} {MODE},{map_},{rank}"
        for map_, rank in itertools.cycle(_TAGS)
    )
    plan = _write(bench.scratch("tags.plan"), wanted, _COUNT)

    def window_of_finds() -> Run:
        tags = [{"map": map_, "rank": rank} for map_, rank in _TAGS]
        lobbies = players.attach([players.namespaces[0]] * PLACEMENT_LOBBIES, itertools.cycle(tags))
        try:
            run = _run_plan(bench, players.service, plan)
            reserved = players.service.metric("hosting_slots", state="reserved")
            if reserved != _COUNT:
                raise WrongAnswer(f"{_COUNT} players got a slot, {reserved} slots are reserved")
        finally:
            players.detach(lobbies)
        return run

    return _compared(bench, "find with tags", plan, window_of_finds)


def _full_lobby(bench: Bench, players: Players) -> dict[str, list[Run]]:
    lobbies = players.attach([players.namespaces[0]])
    players.reserve(lobbies, SLOTS)
    joins = itertools.repeat(f"join {players.public} {lobbies[0].lobby_id}")
    peer_plan = _write(bench.scratch("joins.plan"), joins, _COUNT)
    plan = _write(bench.scratch("full.plan"), (f"{line} {_FULL}" for line in joins), _COUNT)
    runs = _compared(
        bench, "full lobby", peer_plan, lambda: _run_plan(bench, players.service, plan)
    )
    players.detach(lobbies)
    return runs


def _used_tokens(bench: Bench, players: Players) -> dict[str, list[Run]]:
    plan = bench.scratch("used.plan")
    tokens = Tokens.make(players, plan, 16_384)
    first = _run_plan(bench, players.service, plan)
    if first["answers"] != tokens.count:
        raise WrongAnswer(f"{first['answers']} of {tokens.count} players are connected")
    lines = plan.read_text().splitlines()
    peer_plan = _write(bench.scratch("connected.plan"), itertools.cycle(lines), _COUNT)
    used = (f"{line} {_USED}" for line in itertools.cycle(lines))
    _write(plan, used, _COUNT)
    runs = _compared(
        bench, "used token", peer_plan, lambda: _run_plan(bench, players.service, plan)
    )
    tokens.end()
    return runs


def _pages(bench: Bench, players: Players) -> dict[str, list[Run]]:
    service = players.service
    lobbies = players.attach([players.namespaces[0]] * _PAGE)
    page = send_one(
        service.address, service.request("list", {"limit": _PAGE}, token=players.public)
    )
    if page.count(b"lobby_id") != _PAGE:
        raise WrongAnswer(f"a page of {page.count(b'lobby_id')} lobbies")
    lists = itertools.repeat(f"list {players.public} {_PAGE}")
    plan = _write(bench.scratch("list.plan"), lists, _PAGES)
    runs = _compared(bench, "page", plan, lambda: _run_plan(bench, service, plan), page.decode())
    players.detach(lobbies)
    return runs


def _mock_finds(bench: Bench, players: Players) -> list[Run]:
    finds = itertools.repeat(f"find {players.development_token()} {MODE}")
    plan = _write(bench.scratch("mock.plan"), finds, _MOCKS)
    return [_run_plan(bench, players.service, plan) for _ in range(ROUNDS)]
