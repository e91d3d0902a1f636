"""Supervision of edge-guard, which forwards player traffic to game servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyservice.concurrency.backoff import Backoff
from pyservice.durable_files import write_file
from pyservice.edge_guard.admin_socket import query_edge_guard
from pyservice.edge_guard.configuration import (
    RELOADED_KEYS,
    check_config,
    config_text,
    edge_guard_config,
)
from pyservice.edge_guard.process import EDGE_GUARD_BINARY, EdgeGuardLock, exit_of, spawn
from pyservice.edge_guard.supervisor_mark import SupervisorMark
from pyservice.observability.logging import get_logger
from pyservice.process.drain_file import ends_servers
from pyservice.settings import Settings, SettingsError
from pyservice.settings.sections import InheritedSocket

_POLL_INTERVAL_S: Final = 0.02
_QUERY_TIMEOUT_S: Final = 0.5
_START_S: Final = 10.0
_END_S: Final = 5.0
_FORCED_END_S: Final = 0.5
_RETRY_DELAYS_S: Final = (0.1, 0.5, 2.0, 5.0)
_LOG_MAX_BYTES: Final = 1 << 20

_log = get_logger("serve")


class EdgeGuard:
    def __init__(
        self,
        settings: Settings,
        reread: Callable[[], Settings],
        *,
        is_alone: bool = False,
        mark: SupervisorMark | None = None,
    ) -> None:
        """`is_alone` is True if this process supervises only edge-guard, and no plane.

        With a `mark`, a later supervisor may take over while this one runs. Without one, the caller
        has a lock against that.
        """
        self._mark = mark
        self._folder = settings.data_dir.resolve() / "edge"
        self._lock = EdgeGuardLock(self._folder)
        self._listeners = {"edge.http": settings.edge.http, "edge.https": settings.edge.https}
        self._config = edge_guard_config(settings, self._folder)
        self._reread = reread
        self._reload_due = asyncio.Event()
        self._is_vital = is_alone or settings.domains.job is not None
        self._settings = settings
        self.serves = asyncio.Event()
        self._pid = 0
        self._binary: list[int] = []
        """Identity of the running edge-guard binary. The file on disk may have been replaced since.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._is_starting = True

    @property
    def pid(self) -> int:
        return self._lock.holder()

    @property
    def _has_routes(self) -> bool:
        try:
            return bool(json.loads((self._folder / "routes").read_bytes())["routes"])
        except (FileNotFoundError, ValueError, KeyError):
            return False
        except OSError:
            return True  # an unreadable file may contain routes

    async def keep(
        self, stop: asyncio.Event, first_use: asyncio.Event, on_failure: Callable[[], None]
    ) -> None:
        """Runs edge-guard until `stop` is set, and restarts it when it exits. Does not raise.

        Edge-guard is vital if lobbies have a domain, or if this process supervises only edge-guard.
        If edge-guard is not vital and has no routes, the first start waits for the event
        `first_use`. If the first start of a vital edge-guard fails, calls `on_failure` and returns.
        """
        if not self._has_routes and not self._is_vital:
            await _either(stop, first_use)
        backoff, is_first = Backoff(_RETRY_DELAYS_S), True
        while not stop.is_set():
            if self.is_replaced:
                _log.info("edge-guard handed over to another process")
                await stop.wait()
                return
            try:
                self._reload_if_due()
                await self._ensure(stop)
                backoff.reset()
                is_first = False
                self.serves.set()
                await self._wait_exit(stop)
                if not stop.is_set():
                    _log.error("edge-guard exited; restarting it")
            except Exception as error:  # noqa: BLE001 — players need edge-guard, so any error is retried
                is_expected = isinstance(error, (OSError, EdgeGuardFailed))
                log_fields = {} if is_expected else {"exc_info": error}
                _log.error("edge-guard does not serve", error=str(error), **log_fields)
                if is_first and self._is_vital:
                    if self._mark is not None:
                        self._mark.release()
                    on_failure()
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await stop.wait()

    @property
    def is_replaced(self) -> bool:
        """Whether another supervisor has taken over."""
        return self._mark is not None and not self._is_starting and self._mark.is_replaced

    def reload(self) -> None:
        """Makes `keep` read the settings again and apply changed certificates, limits and timeouts."""
        self._reload_due.set()

    async def leave(self, forced: asyncio.Event) -> bool:
        """Stops edge-guard, unless game servers keep running and edge-guard still has routes to
        them.

        If another supervisor has taken over, waits until the connections of this edge-guard have
        ended. Returns False if edge-guard did not stop and was killed.
        """
        if self.is_replaced:
            await self._wait_for_last_connection(forced)
            return True
        if not ends_servers(self._settings) and await self._has_players(forced):
            return True
        if self._process is not None and self._lock.holder() != self._process.pid:
            # The started process does not hold the lock, so it forwards no players yet.
            self._process.kill()
        return await self.end(forced)

    async def _wait_for_last_connection(self, forced: asyncio.Event) -> None:
        process = self._process
        if process is None or process.poll() is not None or process.pid == self._lock.holder():
            # It has ended, or the other supervisor has found it and keeps it.
            return
        with exit_of(process.pid) as exited:
            await _either(exited, forced)
        process.kill()
        process.wait()

    async def end(self, forced: asyncio.Event) -> bool:
        """Stops edge-guard. Returns False if edge-guard did not stop and was killed."""
        # The first signal starts a drain. The second signal ends edge-guard.
        pid = self._lock.signal(signal.SIGTERM, signal.SIGTERM)
        if not pid or await self._has_ended(pid, forced):
            return True
        _log.error("edge-guard does not stop; killing it", pid=pid)
        self._lock.signal(signal.SIGKILL)
        await self._has_ended(pid, forced)
        return False

    async def _has_ended(self, pid: int, forced: asyncio.Event) -> bool:
        left_s = _END_S
        while self._lock.holder() == pid and left_s > 0:
            left_s = min(left_s, _FORCED_END_S if forced.is_set() else _END_S) - _POLL_INTERVAL_S
            await asyncio.sleep(_POLL_INTERVAL_S)
            self._reap()
        return self._lock.holder() != pid

    async def _ensure(self, stop: asyncio.Event) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._mark is not None:
            self._mark.take()
        self._is_starting = False
        self._binary = _version()
        start_state = self._start_state()
        started = self._folder / "started.json"
        with contextlib.suppress(FileNotFoundError):
            if self._lock.holder() and started.read_text() == start_state:
                self._pid = self._lock.holder()
                _log.info("edge-guard found", pid=self._pid)
                return
        path = self._folder / "config.json"
        write_file(path, config_text(self._config))
        before = self._lock.holder()
        self._process = self._start(path)
        if not await self._wait_until_serving(stop):
            return
        write_file(started, start_state.encode())
        self._pid = self._lock.holder()
        _log.info("edge-guard started", pid=self._pid, replaced=before or None)

    def _start_state(self) -> str:
        state = {
            "config": self._config,
            "binary": self._binary,
            "given": self._inherited_listeners(),
        }
        return json.dumps(state, sort_keys=True)

    def _inherited_listeners(self) -> dict[int, tuple[int, int]]:
        return {
            listener.number: _listener_identity(name, listener.number)
            for name, listener in self._listeners.items()
            if isinstance(listener, InheritedSocket)
        }

    def _reload_if_due(self) -> None:
        if not self._reload_due.is_set():
            return
        self._reload_due.clear()
        try:
            config = self._reloaded_config(self._reread())
            write_file(self._folder / "config.json", config_text(config))
            self._config = config
            # If this edge-guard was not found yet or is about to be replaced, its start settings
            # stay.
            if self._pid and self._pid == self._lock.holder():
                write_file(self._folder / "started.json", self._start_state().encode())
        except SettingsError as error:
            for problem in error.problems:
                _log.error("settings of edge-guard not reloaded", problem=str(problem))
        except (OSError, EdgeGuardFailed) as error:
            _log.error("settings of edge-guard not reloaded", problem=str(error))
        else:
            self._lock.signal(signal.SIGHUP)
            _log.info("settings of edge-guard reloaded")

    def _reloaded_config(self, settings: Settings) -> dict[str, Any]:
        new_config = edge_guard_config(settings, self._folder)
        config = {**self._config, **{name: new_config[name] for name in RELOADED_KEYS}}
        if bool(config["certificates"]) != bool(self._config["certificates"]):
            # The data plane reports TLS to lobbies by its own start settings.
            raise EdgeGuardFailed("edge.certificates: the first ones, and none, need a restart")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial = self._folder / "config.new"
        try:
            write_file(trial, config_text(config))
            problems = check_config(trial).refusals
        finally:
            trial.unlink(missing_ok=True)
        if problems:
            raise EdgeGuardFailed("; ".join(problems))
        return config

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        with self._open_log() as log:
            return spawn(
                path,
                "--replace",
                log,
                in_new_session=True,
                inherited=list(self._inherited_listeners()),
            )

    async def _wait_until_serving(self, stop: asyncio.Event) -> bool:
        """Waits until the new edge-guard process reports ready. Returns False if `stop` is set
        first.
        """
        assert self._process is not None
        async with asyncio.timeout(_START_S):
            # A process that holds the lock may still fail to start.
            while not await self._is_serving(self._process.pid):
                if stop.is_set():
                    return False
                if self._process.poll() is not None:
                    raise EdgeGuardFailed(
                        f"ended with {self._process.returncode}: {self._last_line()}"
                    )
                await asyncio.sleep(_POLL_INTERVAL_S)
        return True

    async def _is_serving(self, pid: int) -> bool:
        return self._lock.holder() == pid and bool((await self._status()).get("is_ready"))

    async def _has_players(self, forced: asyncio.Event) -> bool:
        """Returns whether edge-guard has routes for players.

        Queries edge-guard itself, because its route file is out of date after a full disk. If
        edge-guard does not respond in time, reads the route file.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._lock.holder():
            status = await self._status()
            if status.get("is_ready"):
                return bool(status["routes_listening"] or status["routes_refused"])
            if loop.time() - began_s >= (_FORCED_END_S if forced.is_set() else _END_S):
                break
            await asyncio.sleep(_POLL_INTERVAL_S)
        return self._has_routes

    async def _status(self) -> dict[str, Any]:
        try:
            _, body = await query_edge_guard(self._folder, "/readyz?verbose", _QUERY_TIMEOUT_S)
            return dict(json.loads(body))
        except (OSError, ValueError):
            return {}

    def _open_log(self) -> Any:
        path = self._folder / "log"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_MAX_BYTES:
                path.rename(path.with_suffix(".old"))
        return path.open("ab")

    def _last_line(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""

    async def _wait_exit(self, stop: asyncio.Event) -> None:
        try:
            with exit_of(self._pid) as exited:
                while not (exited.is_set() or stop.is_set()):
                    self._reload_if_due()
                    await _either(exited, stop, self._reload_due)
        except OSError:
            return
        self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            self._process.poll()


class EdgeGuardFailed(Exception):
    pass


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()


def _listener_identity(name: str, number: int) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        status = os.fstat(number)
        if stat.S_ISSOCK(status.st_mode):
            with socket.socket(fileno=os.dup(number)) as listener:
                if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return status.st_dev, status.st_ino
    raise EdgeGuardFailed(
        f"{name} is fd:{number}, and the service was started without a listening socket there"
    )


def _version() -> list[int]:
    status = EDGE_GUARD_BINARY.stat()
    return [status.st_size, status.st_mtime_ns]
