"""Protection of Pods from evictions, such as by `kubectl drain`.

A Pod with players is protected until its node has been cordoned for the longest time of a drain. The
cluster keeps the time of the cordon, so it survives a restart of the service. It counts on the clock of
the cluster, because that of the service may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from pyservice.kubernetes.api import ApiError, KubernetesApi
from pyservice.kubernetes.api import Collection as ApiCollection
from pyservice.kubernetes.cluster_nodes import ClusterNodes
from pyservice.kubernetes.pod_manifest import protection_metadata
from pyservice.kubernetes.pod_status import PodState, pod_state

if TYPE_CHECKING:
    from pyservice.kubernetes.pod_lifecycle import PodLifecycle

_NO_DEADLINE_S: Final = 3_600.0


class PodProtection:
    def __init__(self, nodes: ClusterNodes, drain_ms: int) -> None:
        self._nodes = nodes
        self._drain_ms = drain_ms
        self._empty_lobbies: frozenset[str] | None = None
        """None: not known yet."""

    def set_empty_lobbies(self, ids: Collection[str]) -> Collection[str] | None:
        """Sets the lobbies without players. Returns those that are new or have players again.

        Returns None if no players were known before.
        """
        earlier, self._empty_lobbies = self._empty_lobbies, frozenset(ids)
        return None if earlier is None else self._empty_lobbies ^ earlier

    def covers(self, run: PodLifecycle) -> bool:
        """Returns whether nothing may evict the Pod of a run.

        The players of dynamic servers are not known, so their Pods are protected like those with
        players.
        """
        left_ms = self._left_ms(run.pod.node)
        if left_ms is not None and left_ms <= 0:
            return False
        if self._empty_lobbies is None:
            # After a restart, the Pod stays as it is until the players are known.
            return run.pod.is_protected is not False
        return run.id not in self._empty_lobbies

    async def correct(
        self, api: KubernetesApi, pods: ApiCollection, run: PodLifecycle
    ) -> PodState | None:
        """Forbids or allows an eviction of the Pod of a run. Returns its new state, if it changed.

        Raises ApiError.
        """
        pod, is_protected = run.pod, self.covers(run)
        if not run.uid or pod.is_deleting or pod.is_protected == is_protected:
            return None
        metadata = protection_metadata(is_protected=is_protected) | {"uid": pod.uid}
        try:
            changed = pod_state(await api.patch(pods, run.id, {"metadata": metadata}))
        except ApiError as error:
            if not error.is_of_absent_object:
                raise
            return None  # The watch reports the end of the Pod.
        # A webhook of the cluster may have refused the change in silence.
        return changed if changed.is_protected == is_protected else None

    def time_left_s(self, node: str) -> float:
        """Returns the time until the protection on a node may change."""
        left_ms = self._left_ms(node)
        return _NO_DEADLINE_S if left_ms is None or left_ms <= 0 else left_ms / 1_000

    def _left_ms(self, name: str) -> int | None:
        """Returns the rest of the time of a drain, or None if the node is not cordoned."""
        node = self._nodes.get(name)
        if node is None or node.cordoned_ms is None:
            return None
        return node.cordoned_ms + self._drain_ms - self._nodes.now_ms()
