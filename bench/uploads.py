"""An upload of 1 GB through the local store, beside `dd` of as much into the same folder, in turn;
the digest of what was kept is checked each time, and timed by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from bench.machine import Bench, python
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median

NAME = "uploads"
BLOCK_BYTES = 1 << 20
LENGTH = 1 << 30


def run(bench: Bench) -> Result:
    """Uploads and `dd` in turn."""
    folder = bench.scratch("uploads")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    block = random.Random(bench.seed).randbytes(BLOCK_BYTES)
    digest = hashlib.sha256()
    for _ in range(LENGTH // BLOCK_BYTES):
        digest.update(block)
    with _listener(folder / "objects") as service:
        runs = interleaved(
            {
                "dd": lambda: _dd(folder),
                "upload": lambda: _upload(service, block, digest.hexdigest()),
            }
        )
    shutil.rmtree(folder)
    return Result(NAME, _figures(runs), runs)


def _figures(runs: dict[str, list[Run]]) -> list[Figure]:
    ours, bare = (median(runs[name], "mb_per_s") for name in ("upload", "dd"))
    peak = max(float(run["peak_mib"]) for run in runs["upload"])
    note = f"{ours:,.0f} of {bare:,.0f} MB/s, medians of {len(runs['dd'])}; digest checked after it"
    return [
        Figure("upload of 1 GB, share of dd", 100 * ours / bare, "%", at_least=70, note=note),
        Figure("peak RSS of it above idle", peak, "MiB", at_most=64),
        Figure(
            "digest of 1 GB at completion", median(runs["upload"], "digest_s"), "s", note="SHA-256"
        ),
    ]


@contextlib.contextmanager
def _listener(folder: Path) -> Iterator[subprocess.Popen[str]]:
    words = ("-m", "bench.peers.objects_listener", str(folder), str(LENGTH))
    process = subprocess.Popen(
        python(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _upload(service: subprocess.Popen[str], block: bytes, digest: str) -> Run:
    url = urlsplit(_ask(service, "bench/upload"))
    idle_kib = _memory_kib(service.pid, "VmRSS")
    # From here on the peak counts anew.
    Path(f"/proc/{service.pid}/clear_refs").write_text("5")
    with socket.create_connection((url.hostname, url.port)) as client:
        began_s = time.perf_counter()
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: bench\r\nContent-Length: {LENGTH}"
        client.sendall(f"{head}\r\n\r\n".encode())
        for _ in range(LENGTH // BLOCK_BYTES):
            client.sendall(block)
        answer = client.recv(4096)
        took_s = time.perf_counter() - began_s
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise WrongAnswer(f"the upload was answered {answer[:200]!r}")
    peak_kib = _memory_kib(service.pid, "VmHWM")
    began_s = time.perf_counter()
    if _ask(service, "") != digest:
        raise WrongAnswer("what was kept is not what was sent")
    return {
        "mb_per_s": LENGTH / took_s / 1e6,
        "peak_mib": (peak_kib - idle_kib) / 1024,
        "digest_s": time.perf_counter() - began_s,
    }


def _dd(folder: Path) -> Run:
    target = folder / "dd"
    words = ("if=/dev/zero", f"of={target}", "bs=1M", f"count={LENGTH >> 20}", "conv=fdatasync")
    began_s = time.perf_counter()
    subprocess.run(["dd", *words], check=True, capture_output=True)
    took_s = time.perf_counter() - began_s
    target.unlink()
    return {"mb_per_s": LENGTH / took_s / 1e6}


def _ask(service: subprocess.Popen[str], line: str) -> str:
    assert service.stdin is not None
    assert service.stdout is not None
    service.stdin.write(f"{line}\n")
    service.stdin.flush()
    said = service.stdout.readline()
    if not said:
        raise WrongAnswer("the listener has ended")
    return str(json.loads(said))


def _memory_kib(pid: int, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    if match is None:
        raise WrongAnswer(f"the system does not tell {name}")
    return int(match[1])
