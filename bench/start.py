"""Start time of `make run`: from `python -m examples.run` until the game server welcomes a player.

Load: an empty and a used data directory. The code is already built.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from websockets.asyncio.client import connect

from bench.machine import ROOT, Bench, python
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, median
from examples.arena.bots import socket_address
from examples.arena.hosting import HostingClient, ServiceAway, ServiceRefused

NAME = "start"
MODE = "arena"
TIMEOUT_S = 60.0
POLL_S = 0.01


def run(bench: Bench) -> Result:
    folder = bench.scratch("start")
    runs: dict[str, list[Run]] = {"first": [], "again": []}
    for _ in range(ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        for which in runs:
            runs[which].append(_start(folder))
    shutil.rmtree(folder, ignore_errors=True)
    first, again = (median(runs[which], "welcomed_s") for which in ("first", "again"))
    parts = f"service ready {median(runs['first'], 'ready_s'):.1f} s"
    figures = [
        Figure("start to a player in the game", first, "s", at_most=5, note=f"{parts}, empty data"),
        Figure("the same over used data", again, "s"),
    ]
    return Result(NAME, figures, runs)


def _start(folder: Path) -> Run:
    # The start removes an old ready file, but possibly after the first check for a new file.
    (folder / "ready.json").unlink(missing_ok=True)
    began_s = time.monotonic()
    with _example(folder) as process:
        return asyncio.run(_play(folder, process, began_s))


@contextlib.contextmanager
def _example(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        python(
            *("-m", "examples.run", "--data-dir", str(folder), "--http", "127.0.0.1:0"),
            *("--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--cdn", "127.0.0.1:0"),
        ),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=30)
        if code != 0:
            raise WrongAnswer(f"examples.run ended with {code}")


async def _play(folder: Path, process: subprocess.Popen[bytes], began_s: float) -> Run:
    async with asyncio.timeout(TIMEOUT_S):
        addresses = json.loads(await _written(folder / "ready.json", process))
        ready_s = time.monotonic() - began_s
        token = await _written(folder / "public.token", process)
        hosting = HostingClient(f"http://{addresses['http']}", token)
        try:
            placement = await _find(hosting)
        finally:
            hosting.close()
        found_s = time.monotonic() - began_s
        async with connect(socket_address(placement), compression=None, proxy=None) as connection:
            welcome = json.loads(await connection.recv())
            if "id" not in welcome:
                raise WrongAnswer(f"unexpected first message of the game: {welcome}")
    return {"ready_s": ready_s, "found_s": found_s, "welcomed_s": time.monotonic() - began_s}


async def _written(path: Path, process: subprocess.Popen[bytes]) -> str:
    while not (text := _text_of(path)):
        if process.poll() is not None:
            raise WrongAnswer(f"examples.run ended with {process.returncode}")
        await asyncio.sleep(POLL_S)
    return text


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def _find(hosting: HostingClient) -> object:
    body = json.dumps({"game_modes": [MODE]}).encode()
    while True:
        try:
            return await hosting.call("POST", "/matchmaker/lobbies/find", body)
        except ServiceRefused as refused:
            if refused.code != "MATCHMAKER_NO_AVAILABLE_LOBBIES":
                raise
        except ServiceAway:
            pass
        await asyncio.sleep(POLL_S)
