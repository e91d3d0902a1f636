"""Launcher process that forks one keeper for each run: `hosting-keeper --nursery`.

The launcher ends with the control plane, but its keepers continue. `open` succeeds only if no
launcher of an earlier service still starts runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.concurrency.cancellation import await_despite_cancel, cancel_and_wait
from pyservice.observability.logging import get_logger
from pyservice.process.priority import restore_priority
from pyservice.runtime.run_folder import FOLDER_TAKEN, KeeperFailed

_PROCESS_TITLE: Final = "hosting-keeper, which forks one keeper for each game server"
"""The title is longer than that of a keeper, because a keeper overwrites it in place."""

ANSWER_TIMEOUT_S: Final = 5.0

_OPEN_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 65_536
_START_ATTEMPTS: Final = 3

_log = get_logger("runtime")


class LauncherEnded(KeeperFailed):
    """The launcher ended before it responded to a request. The run may have started."""


class _LauncherReply(NamedTuple):
    status: int
    sentence: str


class KeeperLauncher:
    def __init__(self, keeper: Path, runs: Path) -> None:
        self._keeper = keeper
        self._runs = runs
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: asyncio.WriteTransport | None = None
        self._reader: asyncio.Task[None] | None = None
        self._open_lock = asyncio.Lock()
        self._pending: dict[bytes, asyncio.Future[_LauncherReply]] = {}

    async def open(self) -> None:
        if self._requests is not None and not self._open_lock.locked():
            return
        # A cancelled caller must not leave a process without an owner.
        await await_despite_cancel(self._open())

    async def _open(self) -> None:
        async with self._open_lock:
            if self._requests is not None:
                return
            loop = asyncio.get_running_loop()
            process = self._process = await asyncio.to_thread(self._begin)
            self._requests, _ = await loop.connect_write_pipe(asyncio.Protocol, process.stdin)
            answers = asyncio.StreamReader()
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(answers), process.stdout
            )
            response = self._answer(self._runs)
            self._reader = asyncio.create_task(self._read(answers, transport))
            try:
                async with asyncio.timeout(_OPEN_TIMEOUT_S):
                    await response
            except TimeoutError:
                await self._end()
                raise KeeperFailed("another service uses this run folder: stop it first") from None

    def _begin(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [_PROCESS_TITLE, "--nursery", str(self._runs)],
            executable=self._keeper,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        restore_priority(process.pid)
        return process

    async def start(self, folder: Path) -> None:
        """Starts a run unless it was started before. Returns when its program runs or has failed."""
        for _ in range(_START_ATTEMPTS):
            with contextlib.suppress(LauncherEnded):
                await self.open()
                if self._requests is None:
                    raise LauncherEnded("the keeper launcher ended during its start")
                response = self._answer(folder)
                self._requests.write(os.fsencode(folder) + b"\0")
                # Cancellation of the caller does not withdraw the request.
                status, sentence = await asyncio.shield(response)
                if status not in (0, FOLDER_TAKEN):
                    raise KeeperFailed(sentence)
                return
        raise LauncherEnded("the keeper launcher ended repeatedly")

    async def settle(self, folder: Path) -> None:
        """Waits for the launcher's response to the `start` of an ended run, if it is missing.

        If the launcher does not respond, kills it. Calls of `start` for other runs then
        repeat their requests to a new launcher.
        """
        key = os.fsencode(folder)
        response = self._pending.get(key)
        if response is None:
            return
        await asyncio.wait([response], timeout=ANSWER_TIMEOUT_S)
        async with self._open_lock:
            if self._pending.get(key) is response:
                assert self._process is not None
                _log.warning(
                    "keeper launcher does not respond and is killed", pid=self._process.pid
                )
                await self._end()

    async def close(self) -> None:
        async with self._open_lock:
            if self._requests is not None:
                await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        await cancel_and_wait(self._reader)

    def _answer(self, folder: Path) -> asyncio.Future[_LauncherReply]:
        future: asyncio.Future[_LauncherReply] = asyncio.get_running_loop().create_future()
        self._pending[os.fsencode(folder)] = future
        return future

    def _on_reply(self, status: bytes, folder: bytes, sentence: bytes) -> None:
        future = self._pending.pop(folder, None)
        if future is not None and not future.done():
            future.set_result(_LauncherReply(int(status), sentence.decode(errors="replace")))

    async def _read(self, answers: asyncio.StreamReader, transport: asyncio.BaseTransport) -> None:
        process, requests = self._process, self._requests
        assert process is not None
        assert requests is not None
        words: list[bytes] = []
        partial = b""
        try:
            while block := await answers.read(_READ_BYTES):
                *more, partial = (partial + block).split(b"\0")
                words += more
                while len(words) >= 3:
                    self._on_reply(*words[:3])
                    del words[:3]
            _log.warning("keeper launcher ended", pid=process.pid)
        finally:
            self._requests = None
            transport.close()
            if not requests.is_closing():
                requests.abort()
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(LauncherEnded("the keeper launcher ended"))
                    future.exception()
            self._pending.clear()
            process.kill()
            process.wait()
