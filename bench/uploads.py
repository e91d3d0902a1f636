"""Upload rate of a build of 1 GiB through `serve` with its local store.

Load: prepare, PUT and complete over the API, with all cores and with the service on one core. Baseline: `dd` of the
same length into the same folder. All pages of the content differ. A lost, repeated or misplaced block therefore changes
the digest, which the service checks at completion and the benchmark checks in the stored file.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.machine import LOAD_CORE, SERVER_CORE, Bench, on_core, staying_on
from bench.processes import begin_peak, memory_kib
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running

NAME = "uploads"
LENGTH = 1 << 30
_BLOCK_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 1021
"""Prime step, so that pages of different blocks begin at different offsets of the random source."""
_MANIFEST: Final = b'{"command": ["./run"]}'
_PADDING_BYTES: Final = 2 * tarfile.BLOCKSIZE
_GONE_S: Final = 30.0


def run(bench: Bench) -> Result:
    content = _Content.make(bench.seed)
    runs: dict[str, list[Run]] = {}
    for where, is_pinned in (("all cores", False), ("one core", True)):
        with running(bench.scratch("uploads"), is_pinned=is_pinned) as service:
            uploads = _Uploads(service, content, is_pinned=is_pinned)
            runs |= interleaved({f"dd, {where}": uploads.dd, f"upload, {where}": uploads.upload})
    return Result(NAME, _figures(runs), runs)


def _figures(runs: dict[str, list[Run]]) -> list[Figure]:
    figures = []
    for where, at_least in (("all cores", 70), ("one core", None)):
        uploads, bare = runs[f"upload, {where}"], runs[f"dd, {where}"]
        rate, bare_rate = median(uploads, "mb_per_s"), median(bare, "mb_per_s")
        figures.append(
            Figure(
                f"upload of 1 GiB, {where}, share of dd",
                100 * rate / bare_rate,
                "%",
                at_least=at_least,
                note=f"{rate:,.0f} of {bare_rate:,.0f} MB/s, medians of {len(bare)}; completed in "
                f"{median(uploads, 'completed_s'):.2f} s: archive gone through, SHA-256",
            )
        )
    every = [run for name, of_name in runs.items() if name.startswith("upload") for run in of_name]
    peak = max(every, key=lambda run: float(run["peak_mib"]))
    figures.append(
        Figure(
            "peak RSS of upload and completion above idle",
            float(peak["peak_mib"]),
            "MiB",
            at_most=64,
            note=f"all processes, each at its own peak; idle {peak['idle_mib']:.0f} MiB before the "
            f"first upload; largest of {len(every)}",
        )
    )
    return figures


@dataclass(frozen=True)
class _Content:
    head: bytes
    chance: memoryview
    sha256: str

    @classmethod
    def make(cls, seed: int) -> _Content:
        manifest, entry = tarfile.TarInfo("server.json"), tarfile.TarInfo("content")
        manifest.size = len(_MANIFEST)
        entry.size = LENGTH - 3 * tarfile.BLOCKSIZE - _PADDING_BYTES
        head = manifest.tobuf(tarfile.USTAR_FORMAT) + _MANIFEST.ljust(tarfile.BLOCKSIZE, b"\0")
        chance = memoryview(random.Random(seed).randbytes(2 * _BLOCK_BYTES))
        digest = hashlib.sha256()
        content = cls(head + entry.tobuf(tarfile.USTAR_FORMAT), chance, "")
        for block in content.blocks():
            digest.update(block)
        return cls(content.head, chance, digest.hexdigest())

    def blocks(self) -> Iterator[bytes | memoryview]:
        yield self.head
        bytes_left = LENGTH - len(self.head) - _PADDING_BYTES
        for start in range(0, bytes_left, _BLOCK_BYTES):
            at = start // _BLOCK_BYTES * _STEP_BYTES % _BLOCK_BYTES
            yield self.chance[at : at + min(_BLOCK_BYTES, bytes_left - start)]
        yield bytes(_PADDING_BYTES)


class _Uploads:
    def __init__(self, service: Service, content: _Content, *, is_pinned: bool) -> None:
        self._service = service
        self._content = content
        self._is_pinned = is_pinned
        self._game_id = service.game("bench")
        self._objects = service.data_dir / "control" / "objects"
        self._idle_kib = service.idle_memory_kib()

    def upload(self) -> Run:
        for pid in self._service.pids():
            begin_peak(pid)
        image = {"path": "content.tar", "content_length": LENGTH, "sha256": self._content.sha256}
        fields = {"game_id": self._game_id, "display_name": "Bench", "image_file": image}
        build = self._service.call("create_game_build", fields)
        with self._load_core():
            took_s = self._put(str(build["image_presigned_request"]["url"]))
        began_s = time.perf_counter()
        # The service rejects a wrong digest.
        self._service.call("complete_upload", {"upload_id": build["upload_id"]})
        completed_s = time.perf_counter() - began_s
        peak_kib = sum(memory_kib(pid, "VmHWM") for pid in self._service.pids())
        self._look()
        build_fields = {"game_id": self._game_id, "build_id": build["build_id"]}
        self._service.call("delete_build", build_fields)
        self._wait_gone()
        return {
            "mb_per_s": LENGTH / took_s / 1e6,
            "completed_s": completed_s,
            "idle_mib": self._idle_kib / 1024,
            "peak_mib": (peak_kib - self._idle_kib) / 1024,
        }

    def dd(self) -> Run:
        target = self._objects / "dd"
        words = ("if=/dev/zero", f"of={target}", "bs=1M", f"count={LENGTH >> 20}", "conv=fdatasync")
        began_s = time.perf_counter()
        subprocess.run(
            ["dd", *words],
            check=True,
            capture_output=True,
            preexec_fn=on_core(SERVER_CORE) if self._is_pinned else None,
        )
        took_s = time.perf_counter() - began_s
        target.unlink()
        return {"mb_per_s": LENGTH / took_s / 1e6}

    def _load_core(self) -> contextlib.AbstractContextManager[None]:
        return staying_on(LOAD_CORE) if self._is_pinned else contextlib.nullcontext()

    def _put(self, address: str) -> float:
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as client:
            began_s = time.perf_counter()
            head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {LENGTH}"
            client.sendall(f"{head}\r\n\r\n".encode())
            for block in self._content.blocks():
                client.sendall(block)
            answer = client.recv(4096)
            took_s = time.perf_counter() - began_s
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise WrongAnswer(f"the upload was answered {answer[:200]!r}")
        return took_s

    def _files(self) -> list[Path]:
        return [path for path in (self._objects / "kept").rglob("*") if path.is_file()]

    def _look(self) -> None:
        (path,) = self._files()
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self._content.sha256:
                raise WrongAnswer("the stored file differs from the sent file")

    def _wait_gone(self) -> None:
        """Waits until the removed build is deleted, so that the deletion does not slow the next run."""
        end_s = time.monotonic() + _GONE_S
        while self._files():
            if time.monotonic() > end_s:
                raise WrongAnswer("a deleted build is still on the disk")
            time.sleep(0.01)
