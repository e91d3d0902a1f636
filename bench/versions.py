"""Rate and latency of `GET /cloud/games/{g}/versions/{v}` over many versions in random order.

Load: a closed loop for the rate, then an open loop at half of the required rate for the latency. Both planes share one
core. Baseline: a bare uvicorn that reads the same text by its id from SQLite.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.http_load import Request, send_all
from bench.machine import ROOT, SERVER_CORE, Bench, loaded, on_core, python
from bench.processes import end, wait_for
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import MODES, Service, kept_config, running
from pyservice.storage.tables import versions

NAME = "versions"
COUNT = 10_000
JSON_BYTES = 4_096
CONNECTIONS = 64
RATE = 2_000.0
LOOKED_AT = 50
"""Number of responses that are compared completely. The others must contain the version id."""
Configs = Mapping[str, Any]
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    chance = random.Random(bench.seed)
    with running(bench.scratch("versions")) as service:
        game_id = service.game("bench")
        configs = _put_versions(service, game_id, chance)
        _look(service, game_id, configs, chance)
        ids = list(configs)
        ours = [_request(service, game_id, version_id) for version_id in ids]
        chance.shuffle(ours)
        with _bare(bench, service.data_dir / "control" / "records.db") as address:
            runs = interleaved(
                {
                    "bare": lambda: _window(address, ours),
                    "service": lambda: _measured(service, ours),
                }
            )
        runs["open"] = [_window(service.address, ours, RATE / 2) for _ in range(ROUNDS)]
    return Result(NAME, _figures(runs), runs)


def _put_versions(service: Service, game_id: str, chance: random.Random) -> Configs:
    configs: dict[str, Any] = {}
    rows = []
    for number in range(COUNT):
        config = _config(chance)
        version_id = service.ids.new()
        configs[version_id] = config
        rows.append(
            {
                "version_id": version_id,
                "game_id": game_id,
                "display_name": "1.0.0",
                "create_ms": 1_700_000_000_000 + number,
                **kept_config(config),
            }
        )
    service.fill(versions, rows)
    return configs


def _config(chance: random.Random) -> Any:
    env: dict[str, str] = {}
    config = {"matchmaker": {"docker": {"env": env}, "game_modes": MODES}}
    while (missing := JSON_BYTES - len(json.dumps(config, separators=(",", ":")))) > 80:
        env[f"NAME_{len(env)}"] = f"{chance.getrandbits(160):040x}"
    env["LAST"] = "x" * max(0, missing - 10)
    return config


def _request(service: Service, game_id: str, version_id: str) -> Request:
    fields = {"game_id": game_id, "version_id": version_id}
    return service.request("get_version", fields, f'"version_id":"{version_id}"')


def _look(service: Service, game_id: str, configs: Configs, chance: random.Random) -> None:
    for version_id in chance.sample(list(configs), LOOKED_AT):
        answer = service.call("get_version", {"game_id": game_id, "version_id": version_id})
        if answer["version"]["config"] != configs[version_id]:
            raise WrongAnswer(f"version {version_id} differs from the stored one")


def _measured(service: Service, requests: Sequence[Request]) -> Run:
    before_s = service.cpu_s()
    run = _window(service.address, requests)
    run["server_cpu_us_per_answer"] = (service.cpu_s() - before_s) / run["answers"] * 1e6
    return run


def _window(address: str, requests: Sequence[Request], rate_per_s: float = 0.0) -> Run:
    return loaded(lambda: send_all(address, requests, CONNECTIONS, rate_per_s)).run


@contextlib.contextmanager
def _bare(bench: Bench, database: Path) -> Iterator[str]:
    ready, copy = bench.scratch("versions.ready"), bench.scratch("versions.db")
    for path in (ready, copy):
        path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))
    process = subprocess.Popen(
        python("-m", "bench.peers.bare_versions", str(ready), str(copy)),
        cwd=ROOT,
        preexec_fn=on_core(SERVER_CORE),
    )
    try:
        wait_for(ready, process)
        yield ready.read_text()
    finally:
        end(process)
        for path in (ready, copy):
            path.unlink(missing_ok=True)


def _figures(runs: Runs) -> list[Figure]:
    ours, bare, open_loop_runs = (runs[name] for name in ("service", "bare", "open"))
    rate, bare_rate = median(ours, "answers_per_s"), median(bare, "answers_per_s")
    cpu_us = median(ours, "server_cpu_us_per_answer")
    return [
        Figure(
            f"getVersion, {COUNT:,} of {JSON_BYTES:,} bytes in random order, one core",
            rate,
            "/s",
            at_least=RATE,
            note=f"{cpu_us:.0f} µs CPU an answer, all processes; {CONNECTIONS} connections; "
            f"bare uvicorn with sqlite3 {bare_rate:,.0f}/s; generator "
            f"{median(bare, 'load_cpu_share'):.0%} of its core against that",
        ),
        Figure(
            f"the same in an open loop at {RATE / 2:,.0f}/s, p99",
            median(open_loop_runs, "p99_us") / 1e3,
            "ms",
            at_most=10,
            note=f"p50 {median(open_loop_runs, 'p50_us') / 1e3:.2f} ms, "
            f"max {median(open_loop_runs, 'max_us') / 1e3:.1f} ms",
        ),
    ]
