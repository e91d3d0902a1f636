"""Supervisor of the data plane and control plane processes. It restarts a child that exited."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from pyservice.concurrency.backoff import Backoff
from pyservice.process.child_process import (
    HEALTHY_MS,
    NO_RESTART,
    RESTART_DELAYS_S,
    ChildProcess,
)
from pyservice.process.directory_lock import SUPERVISOR_LOCK_FILE, holder_wait_ms
from pyservice.process.drain_file import DrainFile, ends_servers
from pyservice.process.launch import GUARD_LOCK, Launch, longest_end_ms, run_locked
from pyservice.process.listening_sockets import (
    LISTENER_NAMES,
    LISTENERS_OF_ROLE,
    bound_address,
    close_listeners,
    open_listeners,
)
from pyservice.process.ready_report import report_ready
from pyservice.process.stop_signals import StopSignals
from pyservice_cli.local_services import Announcement, local_url

_READY_KEYS: Final = (
    "http",
    "grpc",
    "cdn",
    "metrics",
    "owner_group_id",
    "cloud_token_file",
    "admin",
)
_CONTROL_MS: Final = 10_000
"""Longest wait of the ready file for the control plane."""
_FORCE_INTERVAL_MS: Final = 200
_FORCE_SIGNALS_MAX: Final = 25
"""A child that ignores this many stop signals is killed."""
_POLL_INTERVAL_MS: Final = 20


class EdgeGuardSupervision(Protocol):
    """`edge_guard.supervision.EdgeGuard`."""

    async def keep(
        self, stop: asyncio.Event, first_use: asyncio.Event, on_failure: Callable[[], None]
    ) -> None: ...
    async def leave(self, forced: asyncio.Event) -> bool: ...
    def reload(self) -> None: ...


def run(launch: Launch, make_edge_guard: Callable[[], EdgeGuardSupervision]) -> int:
    """Starts both planes and edge-guard, and supervises them until a stop signal."""
    data_dir = launch.settings.data_dir
    locks = [(data_dir, SUPERVISOR_LOCK_FILE), (data_dir / "edge", GUARD_LOCK)]
    return run_locked(launch, locks, lambda: _Supervisor(launch, make_edge_guard).live())


def _has_no_feed(data_dir: Path) -> bool:
    return not any((data_dir / "feed").glob("*.cfg"))


class _Supervisor:
    def __init__(self, launch: Launch, make_edge_guard: Callable[[], EdgeGuardSupervision]) -> None:
        self._launch = launch
        self._drain = DrainFile.of(launch.settings)
        self._make_edge_guard = make_edge_guard
        self._signals = StopSignals()
        self._has_changed = asyncio.Event()
        self._listeners: dict[str, socket.socket] = {}
        self._data = ChildProcess("data", launch.flags, self._has_changed.set)
        self._control = ChildProcess("control", launch.flags, self._has_changed.set)
        self._children = (self._data, self._control)
        self._needs_control = _has_no_feed(launch.settings.data_dir)
        self._announcement: Announcement | None = None
        self._status = 0

    async def live(self) -> int:
        self._signals.install(asyncio.get_running_loop(), self._reload)
        self._drain.forget_ended()
        await self._open_listeners()
        if self._signals.stop.is_set():
            return self._status
        for child in self._children:
            self._start(child)
        # This slow import comes after the start of the children, which load their modules at the
        # same time.
        from pyservice.observability.logging import (
            configure_logging,
            get_logger,
            log_uncaught_errors,
        )

        settings = self._launch.settings
        configure_logging(level=settings.log_level, format=settings.log_format)
        log_uncaught_errors()
        self._log = get_logger("serve")
        for warning in self._launch.warnings:
            self._log.warning("configuration warning", problem=warning)
        self._edge_guard = self._make_edge_guard()
        self._serves_data = asyncio.Event()
        guard_task = asyncio.create_task(
            self._edge_guard.keep(self._signals.stop, self._serves_data, self._give_up)
        )
        watch_tasks = [asyncio.create_task(self._watch(child)) for child in self._children]
        report_task = asyncio.create_task(self._report_ready())
        stop_wait = asyncio.create_task(self._signals.stop.wait())
        drain_wait = asyncio.create_task(self._drain.wait_until_over())
        await asyncio.wait(
            {report_task, stop_wait, drain_wait, *watch_tasks}, return_when=asyncio.FIRST_COMPLETED
        )
        drain_wait.cancel()
        self._signals.stop.set()
        if self._announcement is not None:
            self._announcement.withdraw()
        # The planes then have the only copies, and new clients are refused when they close them.
        # systemd keeps its own copies for the next service.
        close_listeners(self._listeners)
        await self._end(watch_tasks)
        await guard_task
        if not await self._edge_guard.leave(self._signals.forced):
            self._status = 1
        await report_task
        self._drain.cancel_at_stop()
        return self._status

    async def _open_listeners(self) -> None:
        """Opens the listening sockets of both planes. Raises OSError.

        Waits for the planes of a killed supervisor, which stop and still have the sockets.
        """
        settings, inherited = self._launch.settings, self._launch.listeners
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not self._signals.stop.is_set():
            try:
                self._listeners = open_listeners(settings, LISTENER_NAMES, inherited)
            except OSError as error:
                waited_ms = (loop.time() - began_s) * 1000
                if error.errno != errno.EADDRINUSE or waited_ms >= self._earlier_planes_ms():
                    raise
                await self._signals.wait_stop(_POLL_INTERVAL_MS)
            else:
                return

    def _earlier_planes_ms(self) -> int:
        """Returns how long the start may wait for planes of an earlier supervisor."""
        settings = self._launch.settings
        timeout_ms = longest_end_ms(settings)
        folders = (settings.data_dir, settings.data_dir / "control")
        return max(holder_wait_ms(folder, timeout_ms) for folder in folders)

    def _start(self, child: ChildProcess) -> None:
        """Starts a child with its listening sockets. Raises OSError."""
        names = LISTENERS_OF_ROLE[child.role]
        listeners = {name: self._listeners[name] for name in names if name in self._listeners}
        child.start(*self._address_flags(), listeners=listeners)

    def _address_flags(self) -> list[str]:
        """Returns flags for the ports that the operating system chose."""
        addresses = {name: bound_address(listener) for name, listener in self._listeners.items()}
        if self._data.report is not None:
            # Without the front, the data plane opens this port itself.
            addresses["grpc"] = self._data.report["grpc"]
        settings = self._launch.settings
        return [
            f"--{name}={address}"
            for name, address in addresses.items()
            if getattr(settings, name).port == 0
        ]

    def _give_up(self) -> None:
        self._status = 1
        self._signals.stop.set()

    def _reload(self) -> None:
        """Passes SIGHUP on if all settings and certificates are right. Otherwise nothing changes."""
        # Its imports are slow, as those of `live`.
        from pyservice.process.settings_reload import reread_settings

        launch = self._launch
        if reread_settings(launch.reread, launch.settings, names_unapplied=False) is None:
            return
        for child in self._children:
            child.reload()
        self._edge_guard.reload()

    async def _watch(self, child: ChildProcess) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(RESTART_DELAYS_S)
        while True:
            began_s = loop.time()
            status = await child.wait_for_exit()
            if self._signals.stop.is_set():
                self._note_end(child, status)
                return
            if self._is_fatal(child, status):
                self._log.error("plane cannot start again", role=child.role, status=status)
                self._status = NO_RESTART if status == NO_RESTART else 1
                self._signals.stop.set()
                return
            if (loop.time() - began_s) * 1000 >= HEALTHY_MS:
                backoff.reset()
            child.has_failed = True
            self._has_changed.set()
            wait_ms = round(backoff.next_s() * 1000)
            self._log.error("plane exited", role=child.role, status=status, restart_ms=wait_ms)
            while not await self._restart(child, wait_ms):
                wait_ms = round(backoff.next_s() * 1000)
            if self._signals.stop.is_set():
                return

    async def _restart(self, child: ChildProcess, wait_ms: int) -> bool:
        await self._signals.wait_stop(wait_ms)
        if self._signals.stop.is_set():
            return True
        try:
            self._start(child)
        except OSError as error:
            self._log.error("plane restart failed", role=child.role, error=str(error))
            return False
        self._log.info("plane restarted", role=child.role, pid=child.pid)
        return True

    def _is_fatal(self, child: ChildProcess, status: int) -> bool:
        """Returns whether the service ends with this plane.

        It does if a required plane was never ready, or if another service replaces this one.
        """
        if status == NO_RESTART:
            return True
        is_needed = child is self._data or self._needs_control
        # A restart would fail in the same way.
        return child.report is None and status > 0 and is_needed

    def _note_end(self, child: ChildProcess, status: int) -> None:
        # -SIGTERM means that the signal arrived before the child installed a handler.
        if status not in (0, -signal.SIGTERM):
            self._log.error("plane stopped with an error", role=child.role, status=status)
            self._status = 1

    async def _end(self, watch_tasks: Sequence[asyncio.Task[None]]) -> None:
        """Stops both planes. The data plane stops first, because its last responses need the
        control plane.

        If the stop also ends the game servers, the control plane stops first. Players are then never
        sent to a game server that has ended.
        """
        ends = list(zip(self._children, watch_tasks, strict=True))
        if ends_servers(self._launch.settings):
            ends.reverse()
        for child, watch in ends:
            child.signal(signal.SIGTERM)
            force_task = asyncio.create_task(self._force(child))
            # A child that hangs in a disk operation must not delay the other child.
            await asyncio.wait((watch, force_task), return_when=asyncio.FIRST_COMPLETED)
            force_task.cancel()
        await asyncio.gather(*watch_tasks)

    async def _force(self, child: ChildProcess) -> None:
        await self._signals.forced.wait()
        # Two signals that arrive together count as one, so a single signal could be lost.
        for number in [signal.SIGTERM] * _FORCE_SIGNALS_MAX + [signal.SIGKILL]:
            child.signal(number)
            await asyncio.sleep(_FORCE_INTERVAL_MS / 1000)

    async def _report_ready(self) -> None:
        await self._wait_ready()
        report: dict[str, Any] = {}
        while not self._signals.stop.is_set():
            self._has_changed.clear()
            if report != (report := self._ready()):
                await self._write(report)
            await self._next_change()

    def _ready(self) -> dict[str, Any]:
        planes = (self._control.report or {}) | (self._data.report or {})
        return dict.fromkeys(_READY_KEYS) | planes

    async def _write(self, report: dict[str, Any]) -> None:
        self._log.info(
            "ready", **{name: value for name, value in report.items() if value is not None}
        )
        self._announce(report)
        path = self._launch.ready_file
        if path is not None:
            await report_ready(path, report, self._signals)

    def _announce(self, report: Mapping[str, Any]) -> None:
        """Lets the command line of this user find the service. The service also works without a
        home folder.
        """
        address, token_file = report["http"], report["cloud_token_file"]
        if self._announcement is not None or not (address and token_file):
            return
        url = local_url(address)
        if url is None or self._launch.settings.has_tls:
            return
        try:
            self._announcement = Announcement.publish(url, Path(token_file))
        except OSError as error:
            self._log.info("not announced to the command line", reason=str(error))

    async def _wait_ready(self) -> None:
        """Waits until both planes are ready, or until a stop signal arrives.

        A data plane with a stored configuration can serve alone. The wait then ends 10 s after the
        data plane is ready, or when the control plane exits.
        """
        loop = asyncio.get_running_loop()
        give_up_s = math.inf
        while not self._signals.stop.is_set():
            self._has_changed.clear()
            if self._data.report is not None:
                self._serves_data.set()
            if self._data.report is not None and not self._needs_control:
                give_up_s = min(give_up_s, loop.time() + _CONTROL_MS / 1000)
            if self._data.report is not None and self._control.report is not None:
                return
            if give_up_s < math.inf and (self._control.has_failed or loop.time() >= give_up_s):
                return
            await self._next_change(give_up_s - loop.time())

    async def _next_change(self, timeout_s: float = math.inf) -> None:
        await self._signals.unless_stopped(self._wait_for_change(timeout_s))

    async def _wait_for_change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_s == math.inf else timeout_s):
                await self._has_changed.wait()
