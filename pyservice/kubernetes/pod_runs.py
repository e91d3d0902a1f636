"""Runs of game servers as Pods: the actual Pods are made to match the desired runs.

The cluster is the only memory of Pods. A new control plane lists them, and continues each of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyservice.concurrency.backoff import doubling
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.kubernetes.account_rights import owner_name, owners_of
from pyservice.kubernetes.api import (
    KubernetesApi,
    Object,
    pods_of,
)
from pyservice.kubernetes.cluster_nodes import ClusterNodes, silent_sentence
from pyservice.kubernetes.network_probe import NetworkProbe, ProbeTargets
from pyservice.kubernetes.pod_deletion import delete_unneeded
from pyservice.kubernetes.pod_lifecycle import PodLifecycle
from pyservice.kubernetes.pod_manifest import (
    OwnerReference,
    PodBuild,
    PodNote,
    PodTemplate,
    is_probe,
)
from pyservice.kubernetes.pod_protection import PodProtection
from pyservice.kubernetes.pod_status import PodState, pod_state
from pyservice.kubernetes.watched_objects import WatchedObjects
from pyservice.observability.logging import get_logger
from pyservice.runtime.end_problems import FAILED_STARTS
from pyservice.runtime.run_collection import RunCollection
from pyservice.runtime.run_requests import OwnerKind, RunReporter, RunRequest

_API_RETRIES_S: Final = doubling(0.1, 5.0)
_REPORTED_MAX: Final = 10_000

_log = get_logger("kubernetes")


@dataclass(frozen=True, slots=True)
class RunServices:
    """The parts of the service that runs need."""

    reporters: Mapping[OwnerKind, RunReporter]
    find_build: Callable[[str, str], Awaitable[PodBuild]]
    """Returns a build by the ids of its game and its own. Raises BuildUnusable."""
    bind_ports: Callable[[str, str, str], Awaitable[object]]
    """Binds the ports of a lobby or server to a node, with the host at which players reach it."""
    save_log: Callable[[str, PodState], Awaitable[None]]
    """Saves the rest of the log of a game server that has ended. It has a time limit."""
    log_problem: Callable[[str, str], Awaitable[None]]
    """Adds a sentence to `service` in the log of a run, unless it is the newest line there."""
    may_share_network: bool = False
    """Whether developer groups may share a network that is not isolated."""


class PodRuns(RunCollection[PodLifecycle]):
    """Implements the same interface as the supervisor of a single machine."""

    def __init__(
        self,
        api: KubernetesApi,
        nodes: ClusterNodes,
        template: PodTemplate,
        services: RunServices,
        targets: ProbeTargets | None = None,
    ) -> None:
        """`targets` are the addresses for the probe of the network."""
        super().__init__()
        settings = template.settings
        self.api: Final = api
        self.nodes: Final = nodes
        self.services: Final = services
        self.template = template
        self.probe: Final = NetworkProbe(api, lambda: self.template, targets)
        self.pods: Final = pods_of(settings.namespace)
        self.pending: Final = FairQueue(settings.pending_per_region, settings.pending_per_group)
        """Limits of Pods that wait for a node."""
        self.pending_s: Final = settings.pending_ms / 1_000
        self.failed_starts = Counter(dict.fromkeys(FAILED_STARTS, 0))
        self.on_change: Callable[[], None] = lambda: None
        """Is called when a run begins or ends."""
        self.on_cordon: Callable[[], None] = lambda: None
        """Is called when a node is cordoned or uncordoned."""
        self.protection: Final = PodProtection(nodes, settings.drain_ms)
        self._watched = WatchedObjects(api, self.pods, self, template.selector)
        self._reported: dict[str, None] = {}
        self._groups: Counter[str] = Counter()
        """Number of runs by developer group."""
        self._leaving: dict[str, str] = {}
        """UIDs of Pods that are deleted and not yet gone, by id of their runs."""
        self._removals: set[asyncio.Task[None]] = set()
        nodes.on_lost = self.lose_node
        nodes.on_cordon = self._check_node_again

    async def recover(self) -> None:
        """Reads the nodes and Pods of now, and continues the runs of an earlier control plane.

        After an error, call it again. Raises ApiError.
        """
        owner = await read_owner(self.api, self.template)
        self.template = dataclasses.replace(self.template, owner=owner)
        # Nodes first, so that each Pod that is listed has a known node.
        await self.nodes.list_()
        await self._watched.list_()

    async def run(self) -> None:
        """Follows nodes and Pods until it is cancelled. Call it after `recover`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self._watched.run())
            group.create_task(self.probe.run())

    async def close(self) -> None:
        """Ends the work on runs. Their Pods stay, for the next control plane."""
        self._is_ending = True
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        tasks += self._removals
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The interface of a run supervisor.

    def ensure_running(self, order: RunRequest) -> None:
        """Starts the requested run unless it exists."""
        if self._is_ending or order.id in self._reported:
            return  # the owner has not processed the end of this run yet
        run = self.runs.get(order.id)
        if run is None:
            self._begin(PodLifecycle(self, order.id, request=order))
        else:
            run.confirm(order)

    # Nodes.

    def take_silent_nodes(self, names: Collection[str]) -> None:
        """Ends the runs of the nodes from which the service hears nothing. New Pods avoid these nodes."""
        before, silent = self.template.silent_nodes, frozenset(names)
        if silent == before:
            return
        self.template = dataclasses.replace(self.template, silent_nodes=silent)
        # One pass, because many nodes become silent at once. A Pod that is bound later ends then.
        found = silent - before
        for run in list(self.runs.values()):
            if run.pod.node in found:
                run.lose(silent_sentence(run.pod.node))

    def lose_node(self, name: str, sentence: str) -> None:
        """Ends all runs of a node with the reason `lost`. Programs may still run there."""
        for run in list(self.runs.values()):
            if run.pod.node == name:
                run.lose(sentence)

    def _check_node_again(self, name: str) -> None:
        for run in self.runs.values():
            if run.pod.node == name:
                run.check_again()
        self.on_cordon()

    def set_empty_lobbies(self, ids: Collection[str]) -> None:
        """Receives the ids of all lobbies without players. The cluster may evict their Pods."""
        changed = self.protection.set_empty_lobbies(ids)
        for run_id in self.runs if changed is None else changed:
            if (run := self.runs.get(run_id)) is not None:
                run.check_again()

    # The network.

    async def admit(self, run: PodLifecycle, group_id: str) -> bool:
        """Lets a run of a developer group begin, and returns True.

        Returns False if the network is not isolated, and another group has a run. Waits for the first
        probe, if its result decides.
        """
        if not self._may_begin(group_id):
            await self.probe.wait_for_first()
            if not self._may_begin(group_id):
                return False
        if run.group_id is None:
            run.group_id = group_id
            self._groups[group_id] += 1
        return True

    def _may_begin(self, group_id: str) -> bool:
        return (
            self.services.may_share_network
            or self.probe.is_enforced
            or self._groups.keys() <= {group_id}
        )

    # Capacity.

    @staticmethod
    def pending_keys(note: PodNote) -> tuple[tuple[str, str], ...]:
        return ("region", note.region), ("group", note.group_id)

    def capacity_problem(self, region: str) -> str:
        """Returns why a Pod of this region waits for a node, or nothing if none does."""
        waiting = (run.pod for run in self.runs.values() if run.region == region)
        return next((pod.problem for pod in waiting if pod.is_unschedulable), "")

    def states_by_region(self) -> Counter[tuple[str, str]]:
        """Returns the number of runs by region and state."""
        return Counter((run.region, run.state) for run in self.runs.values())

    # Pods of the cluster.

    def observe(self, found: Object) -> None:
        run_id, uid = found["metadata"]["name"], found["metadata"]["uid"]
        run = self.runs.get(run_id)
        if run is not None:
            run.observe(pod_state(found))
        elif self._leaving.get(run_id) != uid and not is_probe(found):
            note = None if run_id in self._reported else PodNote.of(found)
            if note is None:
                _log.warning("Pod that nothing needs is deleted", id=run_id, uid=uid)
                self._remove(run_id, pod_state(found))
            elif not self._is_ending:
                run = PodLifecycle(self, run_id, note=note, pod=pod_state(found))
                run.take_free_permit()
                self._begin(run)

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        if self._leaving.get(name) == uid:
            del self._leaving[name]
        elif (run := self.runs.get(name)) is not None:
            run.observe_gone(uid, last)

    def on_reported(self, run: PodLifecycle) -> None:
        self._reported[run.id] = None
        while len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]

    def _begin(self, run: PodLifecycle) -> None:
        self.runs[run.id] = run
        if run.group_id is not None:
            self._groups[run.group_id] += 1
        self._idle.clear()
        run.task = asyncio.create_task(run.live())
        run.task.add_done_callback(functools.partial(self._forget, run))
        self.on_change()

    def _forget(self, run: PodLifecycle, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _log.error("run is given up", id=run.id, exc_info=error)
        del self.runs[run.id]
        if run.group_id is not None:
            self._groups -= Counter([run.group_id])
        if run.uid:
            self._leaving[run.id] = run.uid
        if not self.runs:
            self._idle.set()
        self.on_change()

    def _remove(self, run_id: str, pod: PodState) -> None:
        self._leaving[run_id] = pod.uid
        deletion = delete_unneeded(self.api, self.pods, run_id, pod.uid, is_kept=pod.is_kept)
        task = asyncio.create_task(deletion)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)


async def read_owner(api: KubernetesApi, template: PodTemplate) -> OwnerReference:
    """Returns the object that owns the Pods of the service. Raises ApiError."""
    settings = template.settings
    name = owner_name(settings)
    found = await api.get(owners_of(settings.namespace), name)
    return OwnerReference("v1", "ConfigMap", name, found["metadata"]["uid"])
