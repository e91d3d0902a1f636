"""Lifecycle of one run: a method for each state, with its deadline and failure reason.

The end of a run is reported repeatedly until the report is confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pyservice.concurrency.backoff import Backoff
from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.runtime.build_worker import NoDiskSpace
from pyservice.runtime.end_problems import end_problem, failed_start, stored_output
from pyservice.runtime.node_allocation import NoFreePort
from pyservice.runtime.process_environment import ProcessPort
from pyservice.runtime.run_cleanup import KEEPER_GRACE_S, end_leftover_processes, kill_keeper
from pyservice.runtime.run_folder import KeeperFailed, KeeperState, log_text
from pyservice.runtime.run_layout import CannotRun, StoredRun
from pyservice.runtime.run_logs import newest_line
from pyservice.runtime.run_requests import (
    Backend,
    ReportUndelivered,
    RunEnd,
    RunPlacement,
    RunRequest,
)
from pyservice.runtime.shared_network import NODE_IS_SHARED
from pyservice.runtime.stop_requests import Stopped, StopRequest
from pyservice.runtime.unpacked_builds import BuildUnusable, UnpackedBuild

if TYPE_CHECKING:
    from pyservice.runtime.run_supervisor import RunSupervisor

_Result = TypeVar("_Result")

CAPACITY_TIMEOUT_S: Final = 300.0

BUILD_TIMEOUT_S: Final = 1_800.0

START_TIMEOUT_S: Final = 60.0

START_TIMED_OUT: Final = (
    "the game server did not start in time, and its start was cancelled: this node waited too long "
    "for a file that the game server opens or runs"
)
HOST_NETWORK_REFUSED: Final = (
    "network_mode host is not allowed for this developer group: use bridge, or ask the operator for "
    "runtime.host_network"
)
DATABASE_AWAY: Final = (
    "the service could not read from its database whether this node may run the build"
)
_POLL_INTERVAL_S: Final = 2.0
_RETRY_DELAYS_S: Final = (0.1, 0.2, 0.5, 1.0)

_log = get_logger("runtime")
RunState = Callable[[], Awaitable["RunState | None"]]


class RunLifecycle:
    def __init__(
        self,
        context: RunSupervisor,
        stored_run: StoredRun,
        *,
        request: RunRequest | None = None,
        placement: RunPlacement | None = None,
        is_new: bool = False,
    ) -> None:
        """Creates the lifecycle of a new run or of a run that an earlier service laid out.

        `placement` has the resources that the earlier service allocated. `request` is the current
        request. One or both are set. `is_new` means that the run has no folder.
        """
        self.id = stored_run.id
        self.placement = placement
        self.state = "found"
        self.is_new: Final = is_new
        """False for a run of an earlier service."""
        self._has_claim = True
        self._has_capacity = placement is not None
        self.has_changed = asyncio.Event()
        self.ports_problem: str | None = None
        """Why players do not reach the ports, as a sentence. Set by `UnboundPorts`."""
        self.task: asyncio.Task[None] | None = None
        self._context = context
        self.stored_run = stored_run
        self._folder = stored_run.folder
        self._request = request
        self._is_requested = asyncio.Event()
        self._rejection: RunEnd | None = None
        if request is not None:
            self._is_requested.set()
        self._stop = StopRequest()
        self._end: RunEnd | None = None
        self._not_begun: RunEnd | None = None
        self._build: UnpackedBuild | None = None

    @property
    def parameters(self) -> RunRequest | RunPlacement:
        parameters = self.placement or self._request
        assert parameters is not None
        return parameters

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def keeper_pid(self) -> int | None:
        state = self._folder.state()
        return None if state is None else state.keeper_pid

    @property
    def process_ports(self) -> Mapping[str, ProcessPort]:
        """Returns the ports of the process by name. Empty before its placement."""
        return {} if self.placement is None else self.placement.ports

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Returns where edge-guard reaches the process, by name of the port. Empty before its placement."""
        return {} if self.placement is None else self.placement.backends

    @property
    def port_protocols(self) -> dict[str, str]:
        """Returns the protocols of the ports by name. Empty for a run that is not requested."""
        ports = self._request.ports if self._request is not None else {}
        return {name: port.protocol for name, port in ports.items()}

    def confirm(self, request: RunRequest | None = None) -> None:
        """Records that the control plane still wants this run, which was found at the start of the
        service.
        """
        self._request = self._request or request
        self._is_requested.set()

    def abandon(self, end: RunEnd) -> None:
        self._rejection = end
        self._is_requested.set()

    def end_for_disk(self) -> None:
        """Ends the run at once, because its scratch folder would fill the disk."""
        state = self._folder.state()
        sentence = (
            "the disk of this node is nearly full, and the scratch folder of this game server is "
            "the largest"
        )
        started_ms = None if state is None else state.started_ms
        self._end = RunEnd("out_of_disk", None, sentence, started_ms)
        self.stop(0)

    @property
    def has_end(self) -> bool:
        return self._end is not None

    def stop(self, kill_timeout_ms: int | None) -> None:
        """Requests SIGTERM now, and SIGKILL after the timeout.

        If `kill_timeout_ms` is None, the timeout in the request for the run applies.
        """
        timeout_ms = self.parameters.kill_timeout_ms if kill_timeout_ms is None else kill_timeout_ms
        if self._stop.request(timeout_ms):
            self.has_changed.set()

    async def live(self) -> None:
        step: RunState | None = self._first
        while step is not None:
            if step not in (self._first, self._after_error):
                self.state = step.__name__.lstrip("_")
            try:
                step = await step()
            except Stopped:
                step = self._over(RunEnd("stopped"))
            except Exception as error:  # noqa: BLE001 — the program must be watched after any error
                _log.error("run failed", id=self.id, state=self.state, exc_info=error)
                step = self._after_error

    async def _after_error(self) -> RunState:
        """Returns the next state of the run after an unexpected error of the service.

        If the run's keeper is alive, this is the running state.
        """
        await asyncio.sleep(_RETRY_DELAYS_S[-1])
        await self._retry(self._withdraw, OSError)
        if self._folder.is_kept():
            return self._running
        state = self._folder.state()
        if self._end is None and state is not None and state.status == "ended":
            self._end = self._end_of(state)
        if self._end is not None:
            return self._ended
        sentence = (
            f"an unexpected error happened while the run was {self.state}: see the service's log"
        )
        return self._over(RunEnd("lost", message=sentence))

    async def _withdraw(self) -> None:
        try:
            self._folder.withdraw()
        except OSError:
            if not self._folder.is_kept():
                raise

    async def _first(self) -> RunState:
        folder = self._folder
        if self.is_new:
            return self._waiting
        if folder.is_kept():
            return self._running
        if folder.was_started():
            return self._ended
        return self._waiting if self.placement is None else self._found_again

    def _over(self, end: RunEnd) -> RunState:
        self._end = end
        return self._ended

    async def _waiting(self) -> RunState:
        try:
            if self._context.capacity.take(self.parameters.resources):
                self._has_capacity = True
            else:
                await self._stop.within(CAPACITY_TIMEOUT_S, self._wait_for_capacity())
        except TimeoutError:
            resources = self.parameters.resources
            sentence = (
                f"no capacity for {resources.cpu_millicores} millicores and {resources.memory_mb} MB"
                " on this node"
            )
            return self._over(RunEnd("capacity", message=sentence))
        return self._preparing

    async def _wait_for_capacity(self) -> None:
        await self._context.capacity.wait(self.parameters.resources)
        # Set here and not by the caller, because a cancelled wait may already have received the
        # capacity.
        self._has_capacity = True

    async def _preparing(self) -> RunState:
        request = self._request
        assert request is not None
        try:
            refusal = await self._stop.within(
                BUILD_TIMEOUT_S, self._retry(lambda: self._network_refusal(request))
            )
        except TimeoutError:
            return self._over(RunEnd("lost", message=DATABASE_AWAY))
        if refusal is not None:
            return self._over(RunEnd("exec_failed", message=refusal))
        self._build = self._context.builds.get_cached(request.build_id)
        if self._build is not None:
            return self._placing
        try:
            build = await self._stop.within(
                BUILD_TIMEOUT_S,
                self._retry(
                    lambda: self._context.builds.get(request.game_id, request.build_id),
                    NoDiskSpace,
                    OSError,
                ),
            )
        except BuildUnusable as error:
            return self._over(RunEnd("build_unusable", message=str(error)))
        except TimeoutError:
            sentence = "the build could not be fetched and unpacked in time"
            return self._over(RunEnd("build_unusable", message=sentence))
        self._build = build
        return self._placing

    async def _network_refusal(self, request: RunRequest) -> str | None:
        context = self._context
        if await context.has_earlier_run_of_other_group(self.id):
            return NODE_IS_SHARED
        if request.has_host_network and not await context.may_use_host_network(request.build_id):
            return HOST_NETWORK_REFUSED
        return None

    async def _placing(self) -> RunState:
        request, build, context = self._request, self._build, self._context
        assert request is not None
        assert build is not None
        try:
            placement = self.placement = self.placement or context.placements.allocate(request)
            await self._stop.retry(
                lambda: context.in_thread(
                    lambda: self.stored_run.lay_out(request, build, placement, context.node)
                ),
                START_TIMEOUT_S,
                self._note,
            )
        except NoFreePort:
            return self._over(RunEnd("no_ports", message="no port of this node is free"))
        except CannotRun as error:
            return self._over(RunEnd("exec_failed", message=str(error), kind=error.kind))
        except OSError as error:
            sentence = f"this node could not create the run folder: {error.strerror or type(error).__name__}"
            return self._over(RunEnd("exec_failed", message=sentence))
        return self._starting

    async def _found_again(self) -> RunState:
        """Waits until a run that an earlier service laid out but did not start is requested again.

        Returns its next state.
        """
        await self._stop.unless_stopped(self._is_requested.wait())
        if self._rejection is not None:
            return self._over(self._rejection)
        if self._folder.is_withdrawn():
            return self._over(RunEnd("exec_failed", message=START_TIMED_OUT))
        return self._starting

    async def _starting(self) -> RunState:
        placement, context = self.placement, self._context
        assert placement is not None
        reporter = context.reporter(placement.owner)
        try:
            await self._stop.within(
                START_TIMEOUT_S,
                self._retry(lambda: reporter.report_placement(self.id, placement.backends)),
            )
        except TimeoutError:
            sentence = "its address could not be reported, so it was not started"
            return self._over(RunEnd("lost", message=sentence))
        try:
            await self._stop.within(
                START_TIMEOUT_S, context.keeper_launcher.start(self._folder.path)
            )
        except (TimeoutError, Stopped):
            return await self._give_up()
        except (KeeperFailed, OSError) as error:
            if not self._folder.was_started():
                return self._over(RunEnd("exec_failed", message=self._reason(error)))
        return self._running

    async def _give_up(self) -> RunState:
        """Gives up a start that takes too long or that a stop request interrupts.

        After that, only a keeper that has already locked the state file can start the run.
        """
        self._folder.withdraw()
        if self._stop.is_requested:
            self._not_begun = RunEnd("stopped")
            return self._stopping
        state = self._folder.state()
        if state is not None and state.status != "starting":
            return self._running
        self._not_begun = RunEnd("exec_failed", message=START_TIMED_OUT)
        while not self._is_over():
            await self._end_keeper()
            await self._next_change(_POLL_INTERVAL_S)
        return self._ended

    async def _running(self) -> RunState:
        self._context.on_begin(self.id)
        report = self._context.reporter(self.parameters.owner).report_running
        if report is None:
            return await self._watch_program()
        report_task = asyncio.create_task(self._retry(lambda: report(self.id)))
        try:
            return await self._watch_program()
        finally:
            await cancel_and_wait(report_task)

    async def _watch_program(self) -> RunState:
        self.has_changed.clear()
        while not self._is_over():
            if self._stop.is_requested:
                return self._stopping
            await self._next_change(_POLL_INTERVAL_S)
        return self._ended

    async def _stopping(self) -> RunState:
        loop = asyncio.get_running_loop()
        sent_ms: int | None = None
        is_sent, until_s = False, 0.0
        while not self._is_over():
            if sent_ms != self._stop.timeout_ms and self._stop.timeout_ms is not None:
                sent_ms, is_sent = self._stop.timeout_ms, False
                until_s = loop.time() + sent_ms / 1000 + KEEPER_GRACE_S
            if not is_sent and sent_ms is not None:
                is_sent = self._folder.stop(sent_ms)
            if loop.time() >= until_s:
                await self._end_keeper()
                until_s = loop.time() + KEEPER_GRACE_S
            poll_s = _POLL_INTERVAL_S if is_sent else _RETRY_DELAYS_S[0]
            await self._next_change(min(poll_s, until_s - loop.time()))
        return self._ended

    async def _ended(self) -> None:
        end = self._end or await self._observed_end()
        if end.exit_code is None:
            # Leftover processes end before the run's capacity and ports are free.
            await self._context.in_thread(
                lambda: end_leftover_processes(self._folder, self._context.node.groups)
            )
        if self._has_claim:
            self._has_claim = False
            self._context.capacity.end(self.parameters.resources, was_occupied=self._has_capacity)
        end = await self._explained(end)
        _log.info(
            f"{self.parameters.owner} ended",
            id=self.id,
            reason=end.reason,
            exit_code=end.exit_code,
            message=end.message or None,
            kind=end.kind or None,
        )
        if end.kind or end.reason == "exec_failed":
            await self.log_problem(end.message)
        self._context.builds.mark_used(self.parameters.build_id)
        reporter = self._context.reporter(self.parameters.owner)
        await self._retry(lambda: reporter.report_end(self.id, end, self.parameters.tier))
        forget = (
            self.stored_run.mark_reported
            if self._folder.was_started() or self._folder.has_log()
            else self.stored_run.remove
        )
        # Read before the control group is removed.
        await self._context.in_thread(lambda: self._context.record_last_usage(self.id))
        # A full disk must not cause a second report.
        groups = self._context.node.groups
        await self._retry(lambda: self._context.in_thread(lambda: forget(groups)), OSError)
        await self._context.keeper_launcher.settle(self._folder.path)

    async def log_problem(self, sentence: str) -> None:
        """Adds a sentence about a problem, or its solution, to `service` in the log.

        Does nothing if the sentence is the newest line there.
        """
        # The line is only a hint. On a full disk the run ends without it.
        with contextlib.suppress(OSError):
            await self._context.in_thread(lambda: self._write_problem(sentence))
        self._context.on_log_growth(self.id)

    def _write_problem(self, sentence: str) -> None:
        if newest_line(self._folder.path, "service") == log_text(sentence):
            return
        if self.state == "ended":
            self._folder.add_line(sentence, time.time_ns() // 1000)
        else:
            self._folder.send_line(sentence)

    async def _explained(self, end: RunEnd) -> RunEnd:
        """Returns the end with a sentence about its cause, if one is known."""
        context, parameters = self._context, self.parameters
        read = context.reporter(parameters.owner).lobby_progress
        progress = None if read is None or end.started_ms is None else await read(self.id)
        if (reason := failed_start(end, progress)) is not None:
            context.failed_starts[reason] += 1
        problem = await context.in_thread(
            lambda: end_problem(
                end,
                parameters,
                progress,
                lambda: stored_output(self.stored_run),
                peak_memory_bytes=context.node.groups.peak_memory_bytes(self.id),
                ports_problem=self.ports_problem,
            )
        )
        if problem is None:
            return end
        sentence = context.builds.without_paths(problem.sentence)
        return end._replace(message=sentence, kind=problem.kind)

    def _is_over(self) -> bool:
        state = self._folder.state()
        # A keeper records the end before it releases the lock.
        return (state is not None and state.status == "ended") or not self._folder.is_kept()

    async def _observed_end(self) -> RunEnd:
        state = self._folder.state()
        if state is None or state.status != "ended":
            started_ms = None if state is None else state.started_ms
            if self._not_begun is not None and started_ms is None:
                return self._not_begun
            return RunEnd(
                "lost", None, "its keeper died without recording how it ended", started_ms
            )
        if state.reason == "exited" and state.exit_code:
            failure = await self._context.in_thread(self.stored_run.failure)
            if failure is not None:
                return RunEnd("exec_failed", message=self._context.builds.without_paths(failure))
        end = self._end_of(state)
        if end.reason == "exec_failed":
            # The message of the keeper stays if the file cannot be read or has no known problem.
            with contextlib.suppress(OSError):
                problem = await self._context.in_thread(self.stored_run.start_problem)
                if problem is not None:
                    return end._replace(message=problem.sentence, kind=problem.kind)
        return end

    def _end_of(self, state: KeeperState) -> RunEnd:
        message = self._context.builds.without_paths(state.message)
        return RunEnd(state.reason, state.exit_code, message, state.started_ms)

    async def _end_keeper(self) -> None:
        await self._context.in_thread(lambda: kill_keeper(self._folder))

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"this node could not start the game server: {error.strerror or type(error).__name__}"
        return self._context.builds.without_paths(str(error))

    async def _next_change(self, timeout_s: float) -> None:
        timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), self.has_changed.set)
        try:
            await self.has_changed.wait()
        finally:
            timer.cancel()
        self.has_changed.clear()

    def _note(self, error: Exception) -> None:
        _log.warning("run step is retried", id=self.id, state=self.state, error=str(error))

    async def _retry(
        self, work: Callable[[], Awaitable[_Result]], *temporary: type[Exception]
    ) -> _Result:
        """Repeats `work` after temporary errors until it succeeds. Logs the first of these errors.

        `temporary` has further exception types that are temporary here.
        """
        errors: tuple[type[Exception], ...] = (ServiceError, ReportUndelivered, *temporary)
        backoff = Backoff(_RETRY_DELAYS_S)
        while True:
            try:
                return await work()
            except errors as error:
                if not backoff.failures:
                    self._note(error)
            await asyncio.sleep(backoff.next_s())
