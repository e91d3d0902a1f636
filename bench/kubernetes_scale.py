"""A service with 2,000 lobbies on 1,000 nodes, while lobbies start and end.

Load: starts and ends over the public API, at a rate that two cores hold, and finds of existing lobbies beside them.
Baseline for the finds: a service with as many lobbies on one node and no changes, before and after. At last, callers
that start and remove lobbies without a pause show what saturates first. The processor time of 150 changes a second is
computed from theirs. The API server is that of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.http_load import send_all, share
from bench.kubernetes_scene import DUEL, GAME, HALL, MATCH, PLANES, Scene, open_scene
from bench.lobby_changes import LobbyChanges
from bench.machine import Bench, loaded
from bench.results import Figure, Result, Run, WrongAnswer, median

NAME: Final = "kubernetes-scale"
NODES: Final = 1_000
LOBBIES: Final = 2_000
CHANGES_PER_S: Final = 150.0
MEASURED_PER_S: Final = 37.5
"""One core holds both planes at this rate. The other one holds the load and at most 250 simulated nodes."""
SECONDS: Final = 60.0
SATURATED_S: Final = 20.0
CALLERS: Final = 64
_WARM_UP_S: Final = 12.0
_IDLE_S: Final = 20.0
_TRIAL_S: Final = 24.0
_WINDOWS: Final = 10
"""Windows of finds. Their p99 are reduced to a median, as in other benchmarks."""
_BASE_WINDOWS: Final = 5
_WINDOW_S: Final = SECONDS / _WINDOWS
_FINDS_PER_S: Final = 200.0
_FIND_CONNECTIONS: Final = 32
_READS_PER_S: Final = 10.0
_LAG_S: Final = 10.0
"""Period for which the data plane reports the worst delay of its event loop."""
_NICE: Final = -10
_MIB: Final = 1_024
_CORE_MAX: Final = 1.0


def run(bench: Bench) -> Result:
    folder = bench.scratch(NAME)
    lobbies, nodes = int(LOBBIES * bench.size), int(NODES * bench.size)
    # One scene at a time: an idle one takes a tenth of the core.
    base = finds_of_one_node(folder, "before", lobbies)
    with open_scene(folder, nodes, "many") as many:
        filled = fill(many, nodes, lobbies)
        rate = min(MEASURED_PER_S, CHANGES_PER_S * bench.size)
        changed = measure_changes(many, lobbies, rate, bench.size)
        saturated = saturate(many, lobbies, bench.size)
    base += finds_of_one_node(folder, "after", lobbies)
    return Result(
        NAME,
        _figures(filled, changed, saturated, base),
        {"filled": [filled], "changes": [changed], "saturated": [saturated], "one_node": base},
        {"nodes": nodes, "lobbies": lobbies},
    )


def finds_of_one_node(folder: Path, name: str, lobbies: int) -> list[Run]:
    with open_scene(folder, 1, name) as one:
        fill(one, 1, lobbies)
        return _finds_alone(one)


def fill(scene: Scene, nodes: int, lobbies: int) -> Run:
    """Connects all nodes, starts the lobbies that stay, and returns their cost."""
    before = scene.memory_mib()
    scene.wait_for_parts(nodes)
    scene.deploy()
    scene.start_lobbies(1)
    idle = _idle(scene)
    connected, began = scene.memory_mib(), scene.cpu_s()
    run = scene.start_lobbies(lobbies - 1)
    scene.wait_for_pods(lobbies)
    filled, cpu_s = scene.memory_mib(), scene.cpu_s()
    run |= {"lobbies_per_s": (lobbies - 1) / run["seconds"]}
    run |= {f"{name}_cores": one for name, one in _shares(began, cpu_s, run["seconds"]).items()}
    for plane in PLANES:
        run |= {
            f"{plane}_idle_cores": idle[plane],
            f"{plane}_mib_before": before[plane],
            f"{plane}_mib_of_nodes": connected[plane] - before[plane],
            f"{plane}_kib_of_a_lobby": (filled[plane] - connected[plane]) * _MIB / lobbies,
            f"{plane}_cpu_ms_of_a_start": (cpu_s[plane] - began[plane]) * 1_000 / lobbies,
        }
    return run | scene.cluster.report()


def _idle(scene: Scene) -> Mapping[str, float]:
    """Returns how many cores the planes use while the nodes only wait for changes."""
    cpu_s, began_s = scene.cpu_s(), time.monotonic()
    time.sleep(_IDLE_S)
    return _shares(cpu_s, scene.cpu_s(), time.monotonic() - began_s)


def _finds_alone(scene: Scene) -> list[Run]:
    """Measures finds of existing lobbies without changes."""
    scene.service.wait_for_facts()
    with _preferred():
        return [loaded(lambda: _finds(scene)) for _ in range(_BASE_WINDOWS)]


@contextlib.contextmanager
def _preferred() -> Iterator[None]:
    """Prefers this process to the simulation, which shares its core and must not delay the load."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


async def _finds(scene: Scene) -> Run:
    fields = {"game_modes": [HALL]}
    request = scene.service.request("find", fields, '"lobby_id"', token=scene.public)
    requests = [request] * int(_FINDS_PER_S * _WINDOW_S)
    found = await send_all(scene.service.address, requests, _FIND_CONNECTIONS, _FINDS_PER_S)
    return found.run


async def _reads(scene: Scene, seconds: float) -> Run:
    """Reads a record of the control plane. The latency contains the delay of its event loop."""
    request = scene.service.request("get_game", {"game_id": GAME}, '"game_id"')
    requests = [request] * int(_READS_PER_S * seconds)
    return (await send_all(scene.service.address, requests, 4, _READS_PER_S)).run


async def _lags(scene: Scene, seconds: float) -> float:
    """Returns the worst delay of the data plane's event loop."""
    worst_s = 0.0
    for _ in range(max(1, int(seconds / _LAG_S))):
        await asyncio.sleep(_LAG_S)
        lag_s = await asyncio.to_thread(scene.service.metric, "hosting_event_loop_lag_seconds")
        worst_s = max(worst_s, lag_s)
    return worst_s


def measure_changes(
    scene: Scene,
    lobbies: int,
    changes_per_s: float,
    size: float,
    modes: Sequence[str] = (DUEL, MATCH),
) -> Run:
    """Starts and ends lobbies at a rate, with finds and reads beside them, and returns the cost."""
    seconds = SECONDS if size == 1.0 else _TRIAL_S

    async def finds() -> list[Run]:
        return [await _finds(scene) for _ in range(int(seconds / _WINDOW_S))]

    async def all_at_once() -> Run:
        changes = LobbyChanges(scene)
        starts = changes.at_rate(changes_per_s / 2, _WARM_UP_S + seconds, modes)
        starting = asyncio.create_task(starts)
        await asyncio.sleep(_WARM_UP_S)
        scene.begin_peaks()
        cpu_s, ended, began_s = scene.cpu_s(), changes.ended, time.monotonic()
        started = len(changes.started_s)
        results: tuple[Any, ...] = await _together(
            finds(), _reads(scene, seconds), _lags(scene, seconds)
        )
        took_s = time.monotonic() - began_s
        shares = _shares(cpu_s, scene.cpu_s(), took_s)
        count = len(changes.started_s) - started + changes.ended - ended
        peaks = scene.memory_mib("VmHWM")
        await starting
        changes.close()
        return {
            "changes_per_s": count / took_s,
            "required_changes_per_s": 0.98 * changes_per_s,
            **{f"{name}_cores": cores for name, cores in shares.items()},
            **{f"{plane}_peak_mib": peaks[plane] for plane in PLANES},
            "find_p99_us": median(results[0], "p99_us"),
            "find_p50_us": median(results[0], "p50_us"),
            "finds": results[0],
            "read_p50_us": results[1]["p50_us"],
            "read_p99_us": results[1]["p99_us"],
            "data_loop_lag_ms": results[2] * 1_000,
            **_answer_times(changes),
            "started_s": changes.started_s,
        }

    with _preferred():
        run = loaded(all_at_once)
    return _with_cluster_times(scene, run, lobbies)


def saturate(scene: Scene, lobbies: int, size: float) -> Run:
    """Starts and ends lobbies without a pause, and returns the rate and what is busy."""

    async def work() -> Run:
        changes = LobbyChanges(scene)
        cpu_s, began_s = scene.cpu_s(), time.monotonic()
        await changes.with_callers(max(4, int(CALLERS * size)), SATURATED_S)
        took_s = time.monotonic() - began_s
        shares = _shares(cpu_s, scene.cpu_s(), took_s)
        changes.close()
        return {
            "changes_per_s": (len(changes.started_s) + changes.ended) / took_s,
            **{f"{name}_cores": cores for name, cores in shares.items()},
            **_answer_times(changes),
            "started_s": changes.started_s,
        }

    return _with_cluster_times(scene, loaded(work), lobbies)


async def _together(*works: Coroutine[Any, Any, Any]) -> tuple[Any, ...]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
    return tuple(task.result() for task in tasks)


def _shares(
    before: Mapping[str, float], after: Mapping[str, float], seconds: float
) -> dict[str, float]:
    return {name: (after[name] - before[name]) / seconds for name in before}


def _answer_times(changes: LobbyChanges) -> Run:
    ordered = sorted(changes.answered_s)
    return {
        "ready_p50_ms": share(ordered, 0.5) * 1_000,
        "ready_p99_ms": share(ordered, 0.99) * 1_000,
    }


def _with_cluster_times(scene: Scene, run: Run, lobbies: int) -> Run:
    """Adds the times of the Pods. Raises WrongAnswer if a Pod is missing or too many."""
    scene.wait_for_pods(lobbies)
    parts = scene.report_of_parts()
    started_s: Mapping[str, float] = run.pop("started_s")
    if missing := started_s.keys() - parts["created_s"].keys():
        raise WrongAnswer(f"{len(missing)} lobbies started without a Pod")
    if parts["failures"]:
        raise WrongAnswer(f"{parts['failures']} requests of nodes failed: {parts['last_failure']}")
    created = sorted(parts["created_s"][name] - at for name, at in started_s.items())
    served = sorted(
        at - parts["running_s"][name] for name, at in parts["served_s"].items() if name in started_s
    )
    return run | {
        "create_p50_ms": share(created, 0.5) * 1_000,
        "create_p99_ms": share(created, 0.99) * 1_000,
        "watch_p50_ms": share(served, 0.5) * 1_000,
        "watch_p99_ms": share(served, 0.99) * 1_000,
        **scene.cluster.report(),
    }


def busiest(run: Run) -> str:
    """Returns which program had most processor time, and how much."""
    cores = {name: cores for name, cores in run.items() if name.endswith("_cores")}
    del cores["service_cores"]
    name = max(cores, key=cores.__getitem__)
    return f"busiest: {name.removesuffix('_cores')} with {cores[name]:.2f} cores"


def _processor(filled: Run, saturated: Run, plane: str) -> Figure:
    """Returns the processor time at CHANGES_PER_S, by the highest rate that was measured.

    That of nodes without changes does not grow with the rate.
    """
    idle: float = filled[f"{plane}_idle_cores"]
    cores: float = saturated[f"{plane}_cores"]
    rate: float = saturated["changes_per_s"]
    return Figure(
        f"processor of the {plane} plane at {CHANGES_PER_S:.0f} changes/s",
        idle + (cores - idle) / rate * CHANGES_PER_S,
        "cores",
        at_most=_CORE_MAX if plane == "control" else None,
        note=f"computed: {cores:.2f} at {rate:.0f}/s, {idle:.2f} without changes",
    )


def _figures(filled: Run, changed: Run, saturated: Run, base: Sequence[Run]) -> list[Figure]:
    base_us = statistics.median(run["p99_us"] for run in base)
    memory = [
        f"{plane} {filled[f'{plane}_mib_before']:.0f} MiB, nodes {filled[f'{plane}_mib_of_nodes']:.0f} MiB"
        for plane in PLANES
    ]
    return [
        Figure("peak memory of the control plane", changed["control_peak_mib"], "MiB", at_most=1_024,
               note="; ".join(memory)),
        Figure("peak memory of the data plane", changed["data_peak_mib"], "MiB"),
        *(_processor(filled, saturated, plane) for plane in PLANES),
        *(Figure(f"processor of the {plane} plane", changed[f"{plane}_cores"], "cores",
                 note=f"at {changed['changes_per_s']:.1f} changes/s")
          for plane in PLANES),
        Figure("of which nodes without changes, both planes", filled["control_idle_cores"] + filled["data_idle_cores"],
               "cores"),
        Figure("processor of the whole service", changed["service_cores"], "cores"),
        Figure("changes a second", changed["changes_per_s"], "/s", at_least=changed["required_changes_per_s"]),
        Figure("find of existing lobbies beside changes, p99", changed["find_p99_us"] / base_us, "×", at_most=2.0,
               note=f"{changed['find_p99_us'] / 1e3:.2f} of {base_us / 1e3:.2f} ms on one node without changes"),
        Figure("create until a watch sees its Pod, p50", changed["create_p50_ms"], "ms"),
        Figure("create until a watch sees its Pod, p99", changed["create_p99_ms"], "ms"),
        Figure("running Pod until its node has the route, p50", changed["watch_p50_ms"], "ms"),
        Figure("running Pod until its node has the route, p99", changed["watch_p99_ms"], "ms"),
        Figure("read of the control plane, p99", changed["read_p99_us"] / 1e3, "ms",
               note=f"p50 {changed['read_p50_us'] / 1e3:.1f} ms"),
        Figure("worst delay of the data plane's event loop", changed["data_loop_lag_ms"], "ms"),
        Figure("memory of a lobby in the control plane", filled["control_kib_of_a_lobby"], "KiB"),
        Figure("memory of a lobby in the data plane", filled["data_kib_of_a_lobby"], "KiB"),
        Figure("changes a second without a pause", saturated["changes_per_s"], "/s",
               note=f"{CALLERS} callers; {busiest(saturated)}"),
    ]  # fmt: skip
