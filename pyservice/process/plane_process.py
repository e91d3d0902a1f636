"""Process of one plane: its lock, signals, ready report and shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import uvloop

from pyservice.data_formats import FormatsRefused, require_restored
from pyservice.observability.health import raise_descriptor_limit
from pyservice.observability.logging import configure_logging, get_logger, log_uncaught_errors
from pyservice.process.background_tasks import cancel_tasks
from pyservice.process.directory_lock import (
    DirectoryLock,
    DirectoryUnusable,
    lock_holder_pid,
    make_folder,
)
from pyservice.process.drain_file import SERVERS_END_S, DrainFile
from pyservice.process.launch import Launch, longest_end_ms
from pyservice.process.ready_report import remove_ready_file, report_ready
from pyservice.process.stop_signals import StopSignals, wait_for_exit
from pyservice.settings import Settings

_CANCEL_S: Final = 0.5
THREAD_SWITCH_S: Final = 0.000_5
"""Thread switch interval in seconds. With Python's 5 ms, busy threads delay a request by 40 ms."""

_log = get_logger("service")


class Plane(Protocol):
    """Data plane or control plane.

    `run_plane` calls `recover`, `start` and `stop` at most once each, in this order.
    """

    async def recover(self, signals: StopSignals) -> bool:
        """Prepares the plane's stored state. Returns False if a stop signal arrived first."""

    async def start(self) -> dict[str, str]:
        """Starts the servers. Returns the addresses by name, as in the file of `--ready-file`."""

    def reload(self, reread: Callable[[], Settings]) -> None:
        """Reads the settings with `reread` after SIGHUP, and applies those that need no restart."""

    async def stop(self, signals: StopSignals) -> None:
        """Stops the plane. If an error ended the plane, raises that error.

        A second stop signal forces the shutdown.
        """


def run_plane(
    make: Callable[[Settings], Plane],
    launch: Launch,
    lock_dir: Path,
    failures: tuple[type[Exception], ...] = (),
    *,
    outlived_dir: Path | None = None,
    drained_dir: Path | None = None,
) -> int:
    """Creates a plane with `make` and runs it until a stop signal or an error. Returns the exit
    status.

    Logs OSError, DirectoryUnusable, FormatsRefused and the errors in `failures` without a traceback. If the
    supervisor dies, this plane stops after the process that has locked `outlived_dir` has exited.
    Without a supervisor, this plane stops at the end of a drain, after the process that has locked
    `drained_dir`.
    """
    settings = launch.settings
    configure_logging(level=settings.log_level, format=settings.log_format)
    log_uncaught_errors()
    for warning in launch.warnings:
        _log.warning("configuration warning", problem=warning)
    raise_descriptor_limit()
    expected: tuple[type[Exception], ...] = (DirectoryUnusable, FormatsRefused, OSError, *failures)
    try:
        if launch.parent is not None and not launch.parent.stop_on_supervisor_exit():
            return 1
        # The earlier holder may be a stopping child of a killed supervisor.
        timeout_ms = 0 if launch.parent is None else longest_end_ms(settings)
        make_folder(settings.data_dir)
        lock = DirectoryLock.take(lock_dir, timeout_ms=timeout_ms)
        try:
            # A restore holds this lock. It may have begun after the first check.
            require_restored(settings.data_dir)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                try:
                    runner.run(_serve(make, launch, lock, outlived_dir, drained_dir))
                    status = 0
                except expected as error:
                    status = _report_error(error)
                _exit_if_running(runner.run(_cancel_rest()), status)
                return status
        finally:
            lock.release()
    except expected as error:
        return _report_error(error)


def _report_error(error: Exception) -> int:
    _log.error("fatal error", error=str(error))
    return int(getattr(error, "exit_status", 1))


async def _cancel_rest() -> list[str]:
    return await cancel_tasks(asyncio.all_tasks() - {asyncio.current_task()}, _CANCEL_S)


def _exit_if_running(running: Sequence[str], status: int) -> None:
    if running:
        _log.error("exit without waiting for tasks", tasks=list(running))
        os._exit(status)


async def _serve(
    make: Callable[[Settings], Plane],
    launch: Launch,
    lock: DirectoryLock,
    outlived_dir: Path | None,
    drained_dir: Path | None,
) -> None:
    signals = StopSignals()
    if launch.ready_file is not None:
        remove_ready_file(launch.ready_file)
    plane = make(launch.settings)
    loop = asyncio.get_running_loop()
    signals.install(loop, lambda: plane.reload(launch.reread), lock.announce_stopping)
    drain_task = None
    if launch.parent is None:
        drain_task = asyncio.create_task(stop_after_drain(launch.settings, signals, drained_dir))
    if not await plane.recover(signals):
        return
    if not signals.stop.is_set():
        addresses = await plane.start()
        _log.info("ready", **addresses)
        await _report_ready(launch, addresses, signals)
        await signals.stop.wait()
    if drain_task is not None:
        drain_task.cancel()
    if outlived_dir is not None and launch.parent is not None and not launch.parent.is_alive:
        await _outlive(outlived_dir, signals, longest_end_ms(launch.settings))
    await plane.stop(signals)


async def stop_after_drain(settings: Settings, signals: StopSignals, folder: Path | None) -> None:
    """Stops this process, as SIGTERM does, at the end of a drain.

    Waits before that for the end of the process that has locked `folder`.
    """
    await DrainFile.of(settings).wait_until_over()
    if folder is not None:
        await _outlive(folder, signals, longest_end_ms(settings) + int(SERVERS_END_S * 1000))
    os.kill(os.getpid(), signal.SIGTERM)


async def _outlive(folder: Path, signals: StopSignals, duration_ms: int) -> None:
    pid = lock_holder_pid(folder)
    if pid is not None:
        await wait_for_exit(pid, signals, duration_ms)


async def _report_ready(launch: Launch, addresses: Mapping[str, str], signals: StopSignals) -> None:
    if launch.parent is not None:
        launch.parent.report_ready(addresses)
    if launch.ready_file is not None:
        await report_ready(launch.ready_file, addresses, signals)
