"""Lifecycle of one run as a Pod: its creation, the reports of its start, its stop and its end.

The rest of the log is saved first. Then the end is reported repeatedly until the report is confirmed.
Only then is the Pod deleted, so that a new control plane finds every end that no record has. A Pod
that is stopped has a finalizer for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.concurrency.change_signal import ChangeSignal, wait_at_most
from pyservice.errors import ServiceError, Unreachable
from pyservice.kubernetes.api import ApiError, Object, pause_after
from pyservice.kubernetes.cluster_nodes import ClusterNode, lost_sentence, silent_sentence
from pyservice.kubernetes.pod_deletion import delete_unneeded, keep_until_reported
from pyservice.kubernetes.pod_manifest import (
    PodNote,
    grace_s,
    labels,
    pod_manifest,
    pod_note,
    region_of,
)
from pyservice.kubernetes.pod_status import PodState, observed_end, pod_state, refusal_end
from pyservice.observability.logging import get_logger
from pyservice.runtime.end_problems import (
    ProgramOutput,
    end_problem,
    failed_start,
    numbered_ports,
)
from pyservice.runtime.process_environment import ProcessPort
from pyservice.runtime.run_layout import CannotRun
from pyservice.runtime.run_lifecycle import BUILD_TIMEOUT_S, DATABASE_AWAY
from pyservice.runtime.run_requests import (
    Backend,
    ReportUndelivered,
    RunEnd,
    RunPlacement,
    RunRequest,
)
from pyservice.runtime.shared_network import CLUSTER_IS_SHARED
from pyservice.runtime.stop_requests import Stopped, StopRequest
from pyservice.runtime.unpacked_builds import BuildUnusable
from pyservice.storage.database_errors import Conflict

if TYPE_CHECKING:
    from pyservice.kubernetes.pod_runs import PodRuns

_Result = TypeVar("_Result")

START_TIMEOUT_S: Final = 1_800.0
"""Time from a bound Pod to a running game server, with the images and the build to fetch."""
CONFIRMATION_S: Final = 10.0
"""Time in which the control plane says after its start whether it stops a run."""
NAME_TIMEOUT_S: Final = 60.0
"""Time in which an earlier Pod with the name of a new one must be gone."""
NODE_TIMEOUT_S: Final = 30.0
"""Time in which the node of a Pod must be known."""

_RETRIES_S: Final = (0.1, 0.2, 0.5, 1.0)
_API_RETRIES_S: Final = doubling(0.1, 5.0)
_ERROR_DELAYS_S: Final = doubling(1.0, 30.0)
_UNEXPECTED_MAX: Final = 3
_PORTS_EXHAUSTED: Final = "PORTS_EXHAUSTED"
_PORTS_ELSEWHERE: Final = "IN_USE"
"""Code of the data plane for ports that players may know at another node."""
_OWNER_ENDED: Final = ("MATCHMAKER_LOBBY_STOPPED", "MATCHMAKER_LOBBY_NOT_FOUND", "SERVER_NOT_FOUND")
"""Codes of the data plane for ports of a lobby or server that has ended."""

_log = get_logger("kubernetes")


class PodLifecycle:
    def __init__(
        self,
        context: PodRuns,
        run_id: str,
        *,
        request: RunRequest | None = None,
        note: PodNote | None = None,
        pod: PodState | None = None,
    ) -> None:
        """Creates the lifecycle of a new run (`request`), or of a Pod that was found (`note`, `pod`)."""
        self.id = run_id
        self.note = note
        self.group_id = None if note is None else note.group_id
        """Developer group of a run that may begin. None: not decided yet."""
        self.pod = pod or PodState("")
        self.ports_problem: str | None = None
        self.is_reported = False
        self.task: asyncio.Task[None] | None = None
        self._context = context
        self._request = request
        self.is_new: Final = request is not None
        """False for a run of an earlier control plane."""
        self._is_confirmed = self.is_new
        self._rejection: RunEnd | None = None
        self._stop = StopRequest()
        self._sent_s: int | None = None
        """Time to stop that the API server has."""
        self._lost = ""
        self._is_gone = False
        self._is_unseen = False
        """Whether the watch does not see the Pod any more."""
        self._corrected_owner: str | None = None
        """Wrong label that was corrected. If it comes back, it stays."""
        self._early: PodState | None = None
        """State of a Pod that arrived before the answer to its creation."""
        self._early_gone = ""
        """UID of a Pod that was gone before the answer to its creation."""
        self._permit: tuple[tuple[str, str], ...] | None = None
        self._changed = ChangeSignal()
        loop = asyncio.get_running_loop()
        self._confirm_until_s = loop.time() + CONFIRMATION_S
        self._since_s = loop.time()
        """Beginning of the wait for a node, and then of the start on it."""

    @property
    def parameters(self) -> RunRequest | RunPlacement:
        parameters = self._request if self.note is None else self.note.placement
        assert parameters is not None
        return parameters

    @property
    def region(self) -> str:
        if self.note is not None:
            return self.note.region
        return "" if self._request is None else region_of(self._request)

    @property
    def uid(self) -> str:
        """Returns the UID of the Pod. Empty: it was not created, or the watch sees it no more."""
        return "" if self._is_gone or self._is_unseen else self.pod.uid

    @property
    def state(self) -> str:
        """Returns one of: waiting, pending, starting, running, stopping, ended."""
        if self.is_reported or self._lost or self.pod.end is not None:
            return "ended"
        if self._stop.is_requested or self.pod.is_deleting:
            return "stopping"
        if not self.pod.uid:
            return "waiting"
        if not self.pod.node:
            return "pending"
        return "starting" if self.pod.started_ms is None else "running"

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Returns where the process listens, by name of the port. Empty before the Pod's address."""
        if not self.pod.ip:
            return {}
        return {name: (self.pod.ip, port.number) for name, port in self.process_ports.items()}

    @property
    def process_ports(self) -> Mapping[str, ProcessPort]:
        return {} if self.note is None else self.note.placement.ports

    @property
    def port_protocols(self) -> Mapping[str, str]:
        """Returns the protocols of the ports by name. Empty for a run that is not requested."""
        ports = self._request.ports if self._request is not None else {}
        return {name: port.protocol for name, port in ports.items()}

    def confirm(self, request: RunRequest | None = None) -> None:
        """Records that the control plane wants this run."""
        self._request = self._request or request
        self._is_confirmed = True
        self._changed.send()

    def abandon(self, end: RunEnd) -> None:
        """Ends a run that was found and has not started, with this end."""
        self._rejection = end
        self._is_confirmed = True
        self._changed.send()

    def stop(self, kill_timeout_ms: int | None) -> None:
        """Requests SIGTERM now, and SIGKILL after the timeout."""
        timeout_ms = self.parameters.kill_timeout_ms if kill_timeout_ms is None else kill_timeout_ms
        if self._stop.request(timeout_ms):
            self._changed.send()

    def lose(self, sentence: str) -> None:
        """Ends the run, because its node is lost. Its program may still run there."""
        self._lost = self._lost or sentence
        self._changed.send()

    async def log_problem(self, sentence: str) -> None:
        await self._context.services.log_problem(self.id, sentence)

    def check_again(self) -> None:
        """Notes that the node is cordoned or uncordoned, or that players came or left."""
        self._changed.send()

    def observe(self, pod: PodState) -> None:
        if not self.pod.uid:
            self._early = pod
            return
        # The watch repeats what the answer of a request has shown already.
        if pod.uid != self.pod.uid or (pod == self.pod and not self._is_unseen):
            return
        if pod.node and not self.pod.node:
            self._since_s = asyncio.get_running_loop().time()
        self.pod, self._is_unseen = pod, False
        if pod.node:
            self._release_permit()
        self._changed.send()

    def observe_gone(self, uid: str, last: Object | None) -> None:
        """Receives that the watch does not see the Pod any more: it is gone, or has lost its label."""
        if not self.pod.uid:
            self._early_gone = uid
        if uid != self.pod.uid:
            return
        if last is not None:
            self.observe(pod_state(last))
        if self.pod.is_deleting:
            self._is_gone = True
        else:
            self._is_unseen = True
        self._changed.send()

    async def live(self) -> None:
        services = self._context.services
        try:
            end = await self._to_end()
            end = await self._despite_errors(lambda: self._explained(end))
            # A node that is lost saves nothing, and its runs must not end later for it.
            if self.pod.started_ms is not None and not self._lost:
                await self._despite_errors(lambda: services.save_log(self.id, self.pod))
            await self._despite_errors(lambda: self._report_end(end))
            await self._despite_errors(self._delete)
        finally:
            self._release_permit()

    async def _despite_errors(self, step: Callable[[], Awaitable[_Result]]) -> _Result:
        """Repeats a step after unexpected errors of the service."""
        backoff = Backoff(_ERROR_DELAYS_S)
        while True:
            try:
                return await step()
            except Exception as error:  # noqa: BLE001 — an end must reach its record
                _log.error("run failed", id=self.id, state=self.state, exc_info=error)
            await asyncio.sleep(backoff.next_s())

    async def _to_end(self) -> RunEnd:
        """Returns the end of the run, when it has come."""
        backoff = Backoff(_ERROR_DELAYS_S)
        while True:
            try:
                if not self.pod.uid and (refusal := await self._create()) is not None:
                    return refusal
                return await self._watch()
            except Stopped:
                return RunEnd("stopped")
            except Exception as error:  # noqa: BLE001 — the Pod must be followed after any error
                _log.error("run failed", id=self.id, state=self.state, exc_info=error)
            delay_s = backoff.next_s()
            if not self.pod.uid and backoff.failures >= _UNEXPECTED_MAX:
                sentence = "an unexpected error happened before its start: see the service's log"
                return RunEnd("lost", message=sentence)
            await asyncio.sleep(delay_s)

    # Creation.

    async def _create(self) -> RunEnd | None:
        """Creates the Pod. Returns the end of a run that cannot have one. Raises Stopped."""
        request, context = self._request, self._context
        assert request is not None
        try:
            build = await self._stop.within(
                BUILD_TIMEOUT_S,
                self._retry(lambda: context.services.find_build(request.game_id, request.build_id)),
            )
        except BuildUnusable as error:
            return RunEnd("build_unusable", message=str(error))
        except TimeoutError:
            return RunEnd("lost", message=DATABASE_AWAY)
        if not await self._stop.unless_stopped(context.admit(self, build.group_id)):
            return RunEnd("exec_failed", message=CLUSTER_IS_SHARED)
        self.note = pod_note(request, build)
        try:
            manifest = pod_manifest(request, build, self.note, context.template)
        except CannotRun as error:
            return RunEnd("exec_failed", message=str(error), kind=error.kind)
        keys = context.pending_keys(self.note)
        if self._permit is None:
            try:
                await self._stop.within(context.pending_s, self._take_permit(keys))
            except TimeoutError:
                sentence = "too many Pods wait for a node already"
                return self._without_capacity(context.capacity_problem(self.region) or sentence)
        return await self._send(manifest)

    async def _take_permit(self, keys: tuple[tuple[str, str], ...]) -> None:
        await self._context.pending.acquire(*keys)
        # Set here and not by the caller, because a cancelled wait may already have the permit.
        self._permit = keys

    def take_free_permit(self) -> None:
        """Counts a Pod that was found and waits for a node, if the limits allow it."""
        if self.note is not None and not self.pod.node:
            keys = self._context.pending_keys(self.note)
            if self._context.pending.try_acquire(*keys):
                self._permit = keys

    def _release_permit(self) -> None:
        if self._permit is not None:
            self._context.pending.release(*self._permit)
            self._permit = None

    async def _send(self, manifest: Object) -> RunEnd | None:
        """Requests the Pod until it exists. Returns the end of a run that the cluster refuses."""
        context, backoff, loop = self._context, Backoff(_API_RETRIES_S), asyncio.get_running_loop()
        name_until_s, failing_until_s = loop.time() + NAME_TIMEOUT_S, math.inf
        while True:
            try:
                # No attempt is interrupted, because a cut one may still create the Pod.
                self._take(await context.api.create(context.pods, manifest))
                return None
            except ApiError as error:
                failure = error
            if failure.reason == "AlreadyExists":
                try:
                    if await self._take_existing():
                        return None
                except ApiError as error:
                    failure = error
                else:
                    if loop.time() > name_until_s:
                        sentence = "another Pod with the id of this run exists, and does not end"
                        return RunEnd("lost", message=sentence)
            # An answer without a reason is that of a proxy. A Pod of the same name is about to end.
            if failure.reason not in ("", "AlreadyExists"):
                self.pod = PodState("", problem=refusal_end(failure).message)
            if failure.status < 500 or not failure.reason:
                failing_until_s = math.inf
            else:
                failing_until_s = min(failing_until_s, loop.time() + context.pending_s)
            if failure.is_final or loop.time() >= failing_until_s:
                return refusal_end(failure)
            self._note(failure, backoff)
            delay_s = backoff.next_s()
            await self._stop.unless_stopped(pause_after(failure, delay_s))

    async def _take_existing(self) -> bool:
        """Takes the Pod of this run, if an earlier attempt has created it. Raises ApiError."""
        context, parameters = self._context, self.parameters
        try:
            found = await context.api.get(context.pods, self.id)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        own = labels(parameters.owner, context.template.settings.service_name)
        metadata = found["metadata"]
        is_ours = own.items() <= (metadata.get("labels") or {}).items()
        if not is_ours or "deletionTimestamp" in metadata:
            return False
        self._take(found)
        return True

    def _take(self, found: Object) -> None:
        state, early = pod_state(found), self._early
        self._since_s = asyncio.get_running_loop().time()
        self.pod = PodState(state.uid)
        self.observe(early if early is not None and early.uid == state.uid else state)
        self._is_unseen = self._early_gone == state.uid

    # From the Pod to its end.

    async def _watch(self) -> RunEnd:
        start = asyncio.create_task(self._report_start())
        start.add_done_callback(lambda _: self._changed.send())
        backoff = Backoff(_API_RETRIES_S)
        try:
            while True:
                # Taken first, so that no change is missed during the requests.
                changed = self._changed.next
                if (end := self._decide(start)) is not None:
                    return end
                try:
                    await self._act()
                    backoff.reset()
                    pause_s = self._time_left_s()
                except ApiError as error:
                    self._note(error, backoff)
                    pause_s = max(backoff.next_s(), error.retry_after_s or 0.0)
                await wait_at_most(changed, pause_s)
        finally:
            await cancel_and_wait(start)

    async def _report_start(self) -> RunEnd | None:
        """Reports each step of the start. Returns the end of a run that cannot go on."""
        context = self._context
        await self._until(lambda: self.pod.node)
        name = self.pod.node
        try:
            async with asyncio.timeout(NODE_TIMEOUT_S):
                node = await context.nodes.wait_for(name)
        except TimeoutError:
            return self._lost_end(lost_sentence(name, "it is not in the cluster"))
        if context.nodes.is_lost(name):
            return self._lost_end(node.problem)
        if name in context.template.silent_nodes:
            return self._lost_end(silent_sentence(name))
        assert self.note is not None
        if self.note.placement.ports:
            if not node.public_host:
                sentence = f"players cannot reach the node {name}: it has no address"
                return RunEnd("no_ports", message=sentence, started_ms=self.pod.started_ms)
            if (code := await self._retry(lambda: self._bind_ports(node))) in _OWNER_ENDED:
                self.stop(None)
                return None
            if code == _PORTS_ELSEWHERE:
                sentence = f"its Pod came to the node {name}, and its ports are at another node"
                return self._lost_end(sentence)
            if code:
                sentence = f"no public port of the node {name} is free"
                return RunEnd("no_ports", message=sentence, started_ms=self.pod.started_ms)
        await self._until(lambda: self.pod.ip)
        reporter = context.services.reporters[self.parameters.owner]
        await self._retry(lambda: reporter.report_placement(self.id, self.backends))
        await self._until(lambda: self.pod.started_ms is not None)
        if (report_running := reporter.report_running) is not None:
            await self._retry(lambda: report_running(self.id))
        return None

    async def _bind_ports(self, node: ClusterNode) -> str:
        """Returns the code with which the data plane refuses ports. Empty: the ports are bound."""
        try:
            await self._context.services.bind_ports(self.id, node.name, node.public_host)
        except ServiceError as error:
            if error.code in (*_OWNER_ENDED, _PORTS_ELSEWHERE, _PORTS_EXHAUSTED):
                return error.code
            raise
        return ""

    def _decide(self, start: asyncio.Task[RunEnd | None]) -> RunEnd | None:
        """Returns the end of the run, or None if it goes on."""
        pod, now_s = self.pod, asyncio.get_running_loop().time()
        if self._lost and pod.end is None:
            return self._lost_end(self._lost)
        is_explained = self._is_confirmed or self._stop.is_requested or not pod.is_deleting
        is_over = pod.end is not None or self._is_gone
        if is_over and (is_explained or now_s >= self._confirm_until_s):
            return observed_end(pod, is_stopped=self._stop.is_requested)
        if self._rejection is not None and not self.is_new and pod.started_ms is None:
            return self._rejection
        if start.done() and (problem := start.result()) is not None:
            return problem
        if not pod.node and now_s >= self._since_s + self._context.pending_s:
            return self._without_capacity(pod.problem or "no node was chosen in time")
        if pod.node and pod.started_ms is None and now_s >= self._since_s + START_TIMEOUT_S:
            sentence = f"the game server did not start in time on the node {pod.node}"
            detail = f": {pod.problem}" if pod.problem else ""
            return RunEnd("exec_failed", message=sentence + detail)
        return None

    def _time_left_s(self) -> float:
        """Returns the time until the next deadline."""
        pod, now_s = self.pod, asyncio.get_running_loop().time()
        limit_s = START_TIMEOUT_S if pod.node else self._context.pending_s
        untils_s = [self._since_s + limit_s] if pod.started_ms is None else []
        if not self._is_confirmed:
            untils_s.append(self._confirm_until_s)
        left_s = [until_s - now_s for until_s in untils_s if until_s > now_s]
        left_s.append(self._context.protection.time_left_s(pod.node))
        return min(left_s)

    async def _act(self) -> None:
        """Deletes a Pod that is to stop, and corrects changed labels. Raises ApiError."""
        context, pod = self._context, self.pod
        has_wrong_owner = pod.owner not in (self.parameters.owner, self._corrected_owner)
        if self._is_unseen or (has_wrong_owner and not self._is_gone):
            await self._look_again()
            self._corrected_owner = pod.owner
        timeout_ms = self._stop.timeout_ms
        if timeout_ms is None or self._is_gone:
            if changed := await context.protection.correct(context.api, context.pods, self):
                self.observe(changed)
            return
        seconds = grace_s(timeout_ms)
        if self._sent_s is None or seconds < self._sent_s:
            await self._keep_until_reported()
            exists = await context.api.delete(
                context.pods, self.id, uid=self.pod.uid, grace_s=seconds
            )
            self._sent_s = seconds
            if not exists:
                self._is_gone = True
                self._changed.send()

    async def _keep_until_reported(self) -> None:
        """Lets the Pod wait for the report of its end, also if this control plane ends. Raises ApiError."""
        context, pod = self._context, self.pod
        # A Pod without a node has no exit code, and one that is being deleted takes no finalizer.
        if pod.node and not pod.is_deleting and not pod.is_kept:
            found = await keep_until_reported(context.api, context.pods, self.id, pod.uid)
            if found is not None:
                self.observe(pod_state(found))

    async def _look_again(self) -> None:
        """Gives a Pod its labels back, or notes that it is gone. Raises ApiError."""
        context, uid = self._context, self.pod.uid
        try:
            found = await context.api.get(context.pods, self.id)
            if found["metadata"]["uid"] == uid:
                own = labels(self.parameters.owner, context.template.settings.service_name)
                _log.warning("labels of a Pod were changed, and are corrected", id=self.id)
                change = {"metadata": {"labels": own, "uid": uid}}
                self.observe(pod_state(await context.api.patch(context.pods, self.id, change)))
                return
        except ApiError as error:
            if not error.is_of_absent_object:
                raise
        self._is_gone, self._is_unseen = True, False
        self._changed.send()

    # Ends.

    def _lost_end(self, sentence: str) -> RunEnd:
        return RunEnd("lost", None, sentence, self.pod.started_ms)

    def _without_capacity(self, problem: str) -> RunEnd:
        resources = self.parameters.resources
        amounts = f"{resources.cpu_millicores} millicores and {resources.memory_mb} MB"
        return RunEnd("capacity", message=f"no node has room for {amounts}: {problem}")

    async def _explained(self, end: RunEnd) -> RunEnd:
        """Returns the end with its node, and with a sentence about its cause if one is known."""
        context, parameters = self._context, self.parameters
        read = context.services.reporters[parameters.owner].lobby_progress
        progress = None
        if read is not None and end.started_ms is not None:
            progress = await self._retry(lambda: read(self.id))
        if (reason := failed_start(end, progress)) is not None:
            context.failed_starts[reason] += 1
        end = end._replace(node=self.pod.node)
        # A sentence that is already known says more than an exit code.
        if end.kind or (end.message and end.reason in ("exited", "killed", "stopped")):
            return end
        ports = {} if self.note is None else numbered_ports(self.note.placement)
        output = ProgramOutput(self.pod.last_lines, ports=ports)
        problem = end_problem(
            end, parameters, progress, lambda: output, ports_problem=self.ports_problem
        )
        if problem is None:
            return end
        return end._replace(message=problem.sentence, kind=problem.kind)

    async def _report_end(self, end: RunEnd) -> None:
        parameters = self.parameters
        _log.info(
            f"{parameters.owner} ended",
            id=self.id,
            node=self.pod.node or None,
            reason=end.reason,
            exit_code=end.exit_code,
            message=end.message or None,
            kind=end.kind or None,
        )
        reporter = self._context.services.reporters[parameters.owner]
        await self._retry(lambda: reporter.report_end(self.id, end, parameters.tier))
        self.is_reported = True
        self._context.on_reported(self)

    async def _delete(self) -> None:
        """Deletes the Pod after the report of its end."""
        context = self._context
        uid = self.pod.uid or (self._early.uid if self._early is not None else "")
        if uid and not self._is_gone:
            await delete_unneeded(context.api, context.pods, self.id, uid, is_kept=self.pod.is_kept)

    # Waiting.

    async def _until(self, is_met: Callable[[], object]) -> None:
        while not is_met():
            await self._changed.next.wait()

    def _note(self, error: Exception, backoff: Backoff) -> None:
        if not backoff.failures:
            _log.warning("run step is retried", id=self.id, state=self.state, error=str(error))

    async def _retry(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Repeats `work` after temporary errors until it succeeds. Logs the first of these errors."""
        backoff = Backoff(_RETRIES_S)
        while True:
            try:
                return await work()
            except (ServiceError, ReportUndelivered, Unreachable, Conflict) as error:
                self._note(error, backoff)
            await asyncio.sleep(backoff.next_s())
