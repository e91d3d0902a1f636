"""Backup of a service beside `connected` requests, and the restore of its records on an empty machine.

Service: PostgreSQL, as an operator of this size has it, 1,000,000 reserved slots, 10,000 versions, and 5 GB of site
files outside the page cache. Load: an open loop at 2,000 `connected` a second before the backup, beside it and
after it. The backup shares the service's core. The restore uses all cores, and a backup without the files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.http_load import send_one
from bench.load import HTTP, Tokens, run_load
from bench.machine import SERVER_CORE, Bench, on_core, python
from bench.players import MODE, SLOTS, Players
from bench.postgres import postgres
from bench.results import Figure, Result, Run, WrongAnswer, median
from bench.service import MODES, Service, running, started
from pyservice.storage import tables

NAME: Final = "backup"
RESTORES: Final = 3
_RESERVATIONS: Final = 1_000_000
_VERSIONS: Final = 10_000
_VERSION_BYTES: Final = 4_096
_TOGETHER: Final = 1_000
_FILES: Final = 5_000
_FILE_BYTES: Final = 1_000_000
_FILES_OF_SITE: Final = 1_000
_LATER_FILES: Final = 10
_RATE: Final = 2_000.0
_ALONE_S: Final = 30.0
_BYTES_PER_S: Final = 32 << 20
"""Default of `backup.bytes_per_second`."""
_BESIDE: Final = 2.0
"""Planned time of the load over the expected time of the backup. The load leaves out its first tenth."""
_BESIDE_SHARE_MIN: Final = 0.5
"""Least share of the load's time with a backup. Time without one would hide its effect."""


def run(bench: Bench) -> Result:
    with _emptied(bench.scratch("backup")) as folder, postgres() as new_url:
        whole, records = folder / "whole", folder / "records"
        with running(folder / "service", new_url()) as service:
            players = Players(service)
            content = _Content.put(bench, players)
            first = [_create(service, records) for _ in range(2)][-1]
            content.upload(round(_FILES * bench.size))
            runs = _beside_load(bench, players, content, whole, float(first["seconds"]))
            content.upload(_LATER_FILES)
            later = _create(service, whole)
            if later["objects"] != content.files:
                raise WrongAnswer(f"{later['objects']} of {content.files} files are stored")
        development = content.development_token
        restored = [
            _restore(folder / f"restored{number}", new_url(), records, players, development)
            for number in range(RESTORES)
        ]
        if any(one["versions"] != content.versions for one in restored):
            raise WrongAnswer(f"not all of the {content.versions} versions are restored")
        runs |= {"records": [first], "later": [later], "restore": restored}
        runs["verify"] = [_timed("backup", "verify", str(whole), "--json")]
    return Result(NAME, _figures(bench, runs), runs, {"size": bench.size})


@contextlib.contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# State of the service ---------------------------------------------------------------------------


@dataclass
class _Content:
    service: Service
    game_id: str
    development_token: str
    reserved: int
    versions: int
    chance: random.Random
    files: int = 0

    @classmethod
    def put(cls, bench: Bench, players: Players) -> _Content:
        """Reserves slots and creates versions."""
        service = players.service
        lobby_count = round(_RESERVATIONS * bench.size / SLOTS)
        lobbies = players.attach([players.namespaces[0]] * lobby_count)
        players.reserve(lobbies, SLOTS)
        game_id, chance = service.game("content"), random.Random(bench.seed)
        requests = [
            service.request(
                "create_version",
                {"game_id": game_id, "display_name": f"1.0.{number}", "config": _config(chance)},
                '"version_id"',
            )
            for number in range(round(_VERSIONS * bench.size))
        ]
        for start in range(0, len(requests), _TOGETHER):
            service.call_all(requests[start : start + _TOGETHER])
        token = players.development_token()
        count = service.count_of(tables.versions)
        return cls(service, game_id, token, len(lobbies) * SLOTS, count, chance)

    def upload(self, count: int) -> None:
        """Uploads sites with `count` files together. The page cache does not keep them."""
        for start in range(0, count, _FILES_OF_SITE):
            paths = [f"{number}.bin" for number in range(start, min(count, start + _FILES_OF_SITE))]
            files = [{"path": path, "content_length": _FILE_BYTES} for path in paths]
            site = self.service.call(
                "create_site", {"game_id": self.game_id, "display_name": "Site", "files": files}
            )
            for request in site["presigned_requests"]:
                _put(str(request["url"]), self.chance.randbytes(_FILE_BYTES))
            self.service.call("complete_upload", {"upload_id": site["upload_id"]})
            self.files += len(paths)
        for path in (self.service.data_dir / "control" / "objects").rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _config(chance: random.Random) -> Any:
    env = {"TEXT": chance.randbytes(_VERSION_BYTES // 2).hex()}
    return {"matchmaker": {"docker": {"env": env}, "game_modes": MODES}}


def _put(address: str, content: bytes) -> None:
    url = urlsplit(address)
    connection = http.client.HTTPConnection(url.netloc, timeout=60)
    try:
        connection.request("PUT", f"{url.path}?{url.query}", content)
        response = connection.getresponse()
        if response.status != 200:
            raise WrongAnswer(f"the upload was answered {response.read()[:200]!r}")
    finally:
        connection.close()


# Measurements -----------------------------------------------------------------------------------


def _timed(*words: str, core: int | None = None, **environment: str) -> Run:
    """Runs a command of the operator. Returns its seconds, and what it prints as JSON."""
    began_s = time.perf_counter()
    ended = subprocess.run(
        python("-m", "pyservice", *words),
        env=os.environ | environment,
        preexec_fn=None if core is None else on_core(core),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began_s
    if ended.returncode != 0:
        raise WrongAnswer(f"pyservice {' '.join(words)}: {ended.stderr[-2_000:]}")
    printed = json.loads(ended.stdout) if "--json" in words else {}
    return {"seconds": seconds, **printed}


def _create(service: Service, target: Path) -> Run:
    of_service = ("--config", str(service.folder / "settings.toml"))
    data_dir = ("--data-dir", str(service.data_dir))
    words = ("backup", "create", str(target), *of_service, *data_dir, "--json")
    return _timed(*words, core=SERVER_CORE)


def _beside_load(
    bench: Bench, players: Players, content: _Content, target: Path, records_s: float
) -> dict[str, list[Run]]:
    service = players.service
    beside_s = _BESIDE * (records_s + content.files * _FILE_BYTES / _BYTES_PER_S)
    seconds = {"before": _ALONE_S, "beside": beside_s, "after": _ALONE_S}
    all_tokens = {
        name: Tokens.make(players, service.folder / f"{name}.plan", round(_RATE * one_s))
        for name, one_s in seconds.items()
    }
    service.wait_for_facts()

    def load(name: str) -> Run:
        plan, address = all_tokens[name].plan, service.address
        run = run_load(bench, HTTP, address, plan, service.cpu_s, _RATE)
        if run["rays"] != run["answers"]:
            raise WrongAnswer(f"{run['rays']} ray ids on {run['answers']} answers")
        return run

    before = load("before")
    # The backup begins with the part of the load that counts.
    backup, beside = _at_once(
        lambda: _create(service, target), lambda: load("beside"), beside_s / 10
    )
    if backup["seconds"] < _BESIDE_SHARE_MIN * beside["window_s"]:
        raise WrongAnswer("the load lasted longer than planned: something else has its core")
    after = load("after")
    admitted = sum(tokens.count for tokens in all_tokens.values())
    connected = players.connected(players.namespaces[0])
    if (connected, backup["objects"]) != (admitted, content.files):
        raise WrongAnswer(f"{connected} of {admitted} players are connected, backup: {backup}")
    if (reserved := service.metric("hosting_slots", state="reserved")) != content.reserved:
        raise WrongAnswer(f"{reserved} of {content.reserved} slots are reserved")
    return {"before": [before], "beside": [beside], "after": [after], "backup": [backup]}


def _at_once(later: Callable[[], Run], load: Callable[[], Run], delay_s: float) -> tuple[Run, Run]:
    """Runs both. Raises WrongAnswer if the load ends first."""

    def delayed() -> Run:
        time.sleep(delay_s)
        return later()

    with ThreadPoolExecutor(1) as pool:
        running_one = pool.submit(delayed)
        run = load()
        if not running_one.done():
            raise WrongAnswer("the load ended before the backup")
        return running_one.result(), run


def _restore(folder: Path, url: str, target: Path, players: Players, development: str) -> Run:
    """Restores a backup, and plays with the tokens of before: a lobby server returns, and players find it."""
    folder.mkdir()
    data_dir = ("--data-dir", str(folder / "data"))
    began_s = time.perf_counter()
    restored = _timed("restore", str(target), "--yes", *data_dir, PYSERVICE_DATABASE_URL=url)
    with started(folder, url, is_pinned=False) as service:
        ready_s = time.perf_counter() - began_s
        players.service = service
        [lobby] = players.attach(players.namespaces)
        for token in (players.public, development):
            fields = {"game_modes": [MODE]}
            found = send_one(service.address, service.request("find", fields, '"player"', token))
            if token == players.public and lobby.lobby_id.encode() not in found:
                raise WrongAnswer(f"a player of before got {found[:200]!r}")
        found_s = time.perf_counter() - began_s
        versions = service.count_of(tables.versions)
    return {
        "restore_s": restored["seconds"],
        "ready_s": ready_s,
        "found_s": found_s,
        "versions": versions,
    }


def _figures(bench: Bench, runs: dict[str, list[Run]]) -> list[Figure]:
    alone_us = statistics.mean(median(runs[name], "p99_us") for name in ("before", "after"))
    beside, backup = runs["beside"][0], runs["backup"][0]
    later, verify, restore = runs["later"][0], runs["verify"][0], runs["restore"]
    part = "" if bench.size == 1 else f", {bench.size:g} of the size"
    return [
        Figure(
            f"p99 of {_RATE:,.0f} `connected` a second beside a backup, of alone{part}",
            beside["p99_us"] / alone_us,
            "×",
            at_most=3,
            note=f"{beside['p99_us'] / 1e3:.2f} ms at {beside['answers_per_s']:,.0f}/s against "
            f"{alone_us / 1e3:.2f} ms; p50 {beside['p50_us'] / 1e3:.2f} ms, "
            f"max {beside['max_us'] / 1e3:.0f} ms; the backup ran in "
            f"{backup['seconds'] / beside['window_s']:.0%} of this time: {backup['objects']:,} files, "
            f"{backup['object_bytes'] / 1e9:.2f} GB in {backup['seconds']:.0f} s",
        ),
        Figure(
            f"the next backup, with {_LATER_FILES} new files",
            later["seconds"],
            "s",
            at_most=10,
            note=f"`backup verify` of the whole one takes {verify['seconds']:.1f} s",
        ),
        Figure(
            "restore without the files, until clients of before find a lobby",
            median(restore, "found_s"),
            "s",
            at_most=60,
            note=f"the command {median(restore, 'restore_s'):.1f} s, service ready after "
            f"{median(restore, 'ready_s'):.1f} s; median of {len(restore)}",
        ),
    ]
