"""Nodes of the cluster: whether they are ready, and where players reach them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn

from pyservice.concurrency.change_signal import ChangeSignal
from pyservice.kubernetes.api import NODES, KubernetesApi, Object
from pyservice.kubernetes.watched_objects import WatchedObjects
from pyservice.network.node_silence import SILENT_AFTER_S
from pyservice.observability.logging import get_logger
from pyservice.settings.kubernetes_section import RegionNodes, Toleration

PUBLIC_HOST: Final = "hosting/public-host"
"""Annotation of a Node with the name or address at which players reach it."""

NOT_READY_MAX_S: Final = 30.0
"""Time after which a node that is not ready is lost.

After an outage of the API server, healthy nodes are not ready for some seconds.
"""

_ADDRESSES: Final = ("ExternalIP", "InternalIP")
"""Types of addresses that players may reach, in order of preference."""
_CORDON_TAINT: Final = "node.kubernetes.io/unschedulable"
"""Taint that the cluster gives to a cordoned Node, with the time."""
_REFUSING_EFFECTS: Final = ("NoSchedule", "NoExecute")
_ANY_NODES: Final = RegionNodes(region="any")

_log = get_logger("kubernetes")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    name: str
    uid: str
    is_ready: bool
    cordoned_ms: int | None
    """Since when the node is cordoned, in Unix ms of the cluster's clock. None: it is not."""
    public_host: str
    """Where players reach this node. Empty: nowhere."""
    problem: str = ""
    """Why the node is not ready, as a sentence."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()
    """Taints that refuse new Pods."""

    @property
    def is_cordoned(self) -> bool:
        return self.cordoned_ms is not None

    @classmethod
    def of(cls, found: Object, seen_ms: int) -> ClusterNode:
        """`seen_ms` is the time of a cordon that has no time of its own yet."""
        metadata, status = found["metadata"], found.get("status") or {}
        name, spec = metadata["name"], found.get("spec") or {}
        ready: Mapping[str, Any] = next(
            (one for one in status.get("conditions") or () if one.get("type") == "Ready"), {}
        )
        is_ready = ready.get("status") == "True"
        return cls(
            name,
            metadata.get("uid", ""),
            is_ready,
            _cordoned_ms(spec, seen_ms),
            _public_host(metadata.get("annotations") or {}, status.get("addresses") or ()),
            "" if is_ready else lost_sentence(name, str(ready.get("message") or "it is not ready")),
            metadata.get("labels") or {},
            [one for one in spec.get("taints") or () if one.get("effect") in _REFUSING_EFFECTS],
        )

    def takes_new_pods(self, region: RegionNodes | None) -> bool:
        """Returns whether Pods of a region can start here. None: a region without own nodes."""
        region = region or _ANY_NODES
        return (
            self.is_ready
            and not self.is_cordoned
            and region.node_selector.items() <= self.labels.items()
            and all(
                any(_tolerates(one, taint) for one in region.tolerations) for taint in self.taints
            )
        )


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    return (
        toleration.key == taint["key"]
        and toleration.value in (None, taint.get("value", ""))
        and toleration.effect in (None, taint["effect"])
    )


def lost_sentence(name: str, reason: str) -> str:
    return f"the node {name} was lost: {reason.strip().rstrip('.')}"


def _cordoned_ms(spec: Mapping[str, Any], seen_ms: int) -> int | None:
    if not spec.get("unschedulable"):
        return None
    taint: Mapping[str, Any] = next(
        (one for one in spec.get("taints") or () if one.get("key") == _CORDON_TAINT), {}
    )
    # The cluster adds the taint shortly after the cordon.
    added = taint.get("timeAdded")
    return int(datetime.fromisoformat(added).timestamp() * 1_000) if added else seen_ms


def silent_sentence(name: str) -> str:
    reason = f"its part of the service has not been heard for {SILENT_AFTER_S} s"
    return lost_sentence(name, reason)


def _public_host(annotations: Mapping[str, str], addresses: Any) -> str:
    by_type: dict[str, str] = {}
    for one in addresses:
        by_type.setdefault(one.get("type"), one.get("address"))
    found = [annotations.get(PUBLIC_HOST), *map(by_type.get, _ADDRESSES)]
    return next(filter(None, found), "")


def _ignore(name: str, text: str) -> None:
    pass


class ClusterNodes:
    """The nodes as the API server reports them. Use it after `list_`, while `run` is running."""

    def __init__(self, api: KubernetesApi, *, not_ready_max_s: float = NOT_READY_MAX_S) -> None:
        self.on_lost: Callable[[str, str], None] = _ignore
        """Receives the name of a node that is lost, and a sentence."""
        self.on_cordon: Callable[[str], None] = lambda name: None
        """Receives the name of a node that is cordoned or uncordoned."""
        self.on_gone: Callable[[str, str], None] = _ignore
        """Receives the name and UID of a Node that was deleted or replaced."""
        self.now_ms = api.now_ms
        """Returns the Unix time on the clock of the cluster, which also sets the times of cordons."""
        self._not_ready_max_s = not_ready_max_s
        self._nodes: dict[str, ClusterNode] = {}
        self._doubts: dict[str, asyncio.TimerHandle] = {}
        """Timers of the nodes that are not ready."""
        self._lost: set[str] = set()
        """Nodes that have not been ready for too long."""
        self._changed = ChangeSignal()
        self._watched = WatchedObjects(api, NODES, self)

    async def list_(self) -> None:
        """Reads all nodes. Raises ApiError."""
        await self._watched.list_()

    async def run(self) -> NoReturn:
        try:
            await self._watched.run()
        finally:
            for timer in self._doubts.values():
                timer.cancel()

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        return self._nodes

    def get(self, name: str) -> ClusterNode | None:
        return self._nodes.get(name)

    def is_lost(self, name: str) -> bool:
        return name in self._lost

    async def wait_for(self, name: str) -> ClusterNode:
        """Waits until a node is known."""
        while (node := self._nodes.get(name)) is None:
            await self._changed.next.wait()
        return node

    def observe(self, found: Object) -> None:
        earlier = self._nodes.get(found["metadata"]["name"])
        cordoned_ms = None if earlier is None else earlier.cordoned_ms
        node = ClusterNode.of(found, self.now_ms() if cordoned_ms is None else cordoned_ms)
        self._nodes[node.name] = node
        if earlier is None:
            self._changed.send()
        if node.cordoned_ms != cordoned_ms:
            if cordoned_ms is None or not node.is_cordoned:
                event = "node is cordoned" if node.is_cordoned else "node is uncordoned"
                _log.info(event, node=node.name)
            self.on_cordon(node.name)
        if node.is_ready:
            self._trust(node.name)
        elif node.name not in self._doubts:
            _log.warning("node is not ready", node=node.name, problem=node.problem)
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._not_ready_max_s, self._give_up, node.name)
            self._doubts[node.name] = timer

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        self._trust(name)
        del self._nodes[name]
        _log.info("node is gone", node=name)
        self.on_lost(name, lost_sentence(name, "it was removed from the cluster"))
        self.on_gone(name, uid)

    def _trust(self, name: str) -> None:
        self._lost.discard(name)
        if (timer := self._doubts.pop(name, None)) is not None:
            timer.cancel()

    def _give_up(self, name: str) -> None:
        self._lost.add(name)
        self.on_lost(name, self._nodes[name].problem)
