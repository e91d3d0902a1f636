"""Memory of configurations in the data plane: the reported use, and additions since the report."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.settings.quotas import QUOTAS
from pyservice.storage.quotas import CONFIGURATION_BYTES


def memory_error(quota: str, limit: int, use: int) -> ServiceError:
    """Returns QUOTA_EXCEEDED for the memory of a group, or of all groups."""
    if quota in QUOTAS:
        return QUOTAS[quota].exceeded(limit, use)
    return ServiceError(
        "QUOTA_EXCEEDED",
        f"The configurations of all groups may take {limit:,} bytes in the data plane's memory, and {use:,} are in "
        "use. Remove tokens, domains or namespaces that you no longer need, run a smaller version or one that another "
        "namespace runs, or ask the operator for a higher limit.",
        metadata={"quota": quota, "scope": "service", "limit": str(limit), "use": str(use)},
    )


class _Addition(NamedTuple):
    number: int
    group_id: str
    size: int


class DataPlaneMemory:
    def __init__(self) -> None:
        self._group_bytes: dict[str, int] = {}
        self._total_bytes = 0
        self._total_bytes_max = 0
        """0 until the data plane reports its limit."""
        self._acknowledged: dict[str, int] = {}
        """Bytes of groups from answers since the last read began. That read may be older."""
        self._additions: dict[str, list[_Addition]] = {}
        """Committed additions that no answer of the data plane includes yet, by namespace."""
        self._added: Counter[str] = Counter()
        self._number = 0

    def of_group(self, group_id: str) -> int:
        return self._group_bytes.get(group_id, 0) + self._added[group_id]

    def begin_read(self) -> None:
        self._acknowledged = {}

    def take(self, response: feed_pb2.HeldResponse) -> None:
        self._group_bytes = {**response.group_bytes, **self._acknowledged}
        self._total_bytes = response.total_bytes
        self._total_bytes_max = response.total_bytes_max

    def acknowledge(self, group_id: str, applied: feed_pb2.Applied) -> None:
        # The answer to a repeated message has no figures.
        if applied.total_bytes:
            self._group_bytes[group_id] = self._acknowledged[group_id] = applied.group_bytes
            self._total_bytes = applied.total_bytes

    def require(self, group_id: str, added: int, group_limit: int) -> None:
        """Raises QUOTA_EXCEEDED if the group, or all groups together, have no room."""
        use = self.of_group(group_id)
        if use + added > group_limit:
            raise memory_error(CONFIGURATION_BYTES, group_limit, use)
        most, use = self._total_bytes_max, self._total_bytes + self._added.total()
        if most and use + added > most:
            raise memory_error("data_plane_configuration_bytes", most, use)

    def add(self, group_id: str, namespace_id: str, added: int) -> None:
        """Counts a committed addition until the data plane has applied it."""
        self._number += 1
        addition = _Addition(self._number, group_id, added)
        self._additions.setdefault(namespace_id, []).append(addition)
        self._added[group_id] += added

    def last_addition(self, namespace_id: str) -> int:
        """Returns the number of the namespace's last addition, or 0."""
        additions = self._additions.get(namespace_id)
        return additions[-1].number if additions else 0

    def confirm(self, namespace_id: str, number: int) -> None:
        """Stops counting the additions up to this number: the reported use includes them."""
        remaining = []
        for addition in self._additions.pop(namespace_id, ()):
            if addition.number > number:
                remaining.append(addition)
                continue
            self._added[addition.group_id] -= addition.size
            if not self._added[addition.group_id]:
                del self._added[addition.group_id]
        if remaining:
            self._additions[namespace_id] = remaining
