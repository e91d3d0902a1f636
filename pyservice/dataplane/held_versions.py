"""Versions and bytes in the memory of the data plane. Equal versions are held once."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping, Set
from hashlib import sha256
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyservice.dataplane.resolved_namespace import (
    ResolvedVersion,
    VersionsById,
    resolve_version,
    version_content,
)
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb


class Holding(NamedTuple):
    """Content of one namespace: its versions, and the bytes of everything else."""

    versions: Set[ResolvedVersion] = frozenset()
    own_bytes: int = 0


NOTHING: Final = Holding()


class Growth(NamedTuple):
    """Bytes that a change would add to a group and to all namespaces."""

    group: int = 0
    total: int = 0
    versions: int = 0
    """Bytes of versions that it would add to the group or to all namespaces, the larger of both."""


class _Uses:
    """Counts the namespaces that use each version, and the bytes of all namespaces."""

    def __init__(self, sizes: Mapping[ResolvedVersion, int]) -> None:
        self._sizes = sizes
        self._uses: Counter[ResolvedVersion] = Counter()
        self.bytes_held = 0

    @property
    def is_empty(self) -> bool:
        return not self.bytes_held

    def growth_of_versions(self, added: Holding, removed: Holding) -> int:
        gained, lost = added.versions - removed.versions, removed.versions - added.versions
        return sum(self._sizes[version] for version in gained if not self._uses[version]) - sum(
            self._sizes[version] for version in lost if self._uses[version] == 1
        )

    def replace(self, added: Holding, removed: Holding) -> None:
        self.bytes_held += added.own_bytes - removed.own_bytes
        for version in added.versions:
            if not self._uses[version]:
                self.bytes_held += self._sizes[version]
            self._uses[version] += 1
        for version in removed.versions:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                self.bytes_held -= self._sizes[version]


class HeldVersions:
    """Versions of all namespaces, and the bytes of each group. A group counts each of its versions
    in full, also if namespaces of other groups share it.
    """

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[tuple[bool, bytes], ResolvedVersion] = (
            WeakValueDictionary()
        )
        self._sizes: WeakKeyDictionary[ResolvedVersion, int] = WeakKeyDictionary()
        self._total = _Uses(self._sizes)
        self._of_group: dict[bytes, _Uses] = {}

    @property
    def bytes_held(self) -> int:
        return self._total.bytes_held

    @property
    def group_bytes(self) -> dict[bytes, int]:
        return {group: uses.bytes_held for group, uses in self._of_group.items()}

    def bytes_of(self, group: bytes) -> int:
        uses = self._of_group.get(group)
        return uses.bytes_held if uses else 0

    def resolve(self, configuration: pb.NamespaceConfiguration) -> VersionsById:
        """Returns the versions of a complete configuration. Thread-safe while no other thread
        resolves.
        """
        retained = {
            version.version_id: self._shared(version.matchmaker, is_retained=True)
            for version in configuration.retained_versions
        }
        return retained | {
            version.version_id: self._shared(version.matchmaker, is_retained=False)
            for version in configuration.versions
        }

    def _shared(self, matchmaker: pb.MatchmakerConfig, *, is_retained: bool) -> ResolvedVersion:
        content = version_content(matchmaker)
        key = is_retained, sha256(content).digest()
        version = self._by_digest.get(key)
        if version is None:
            version = resolve_version(content, is_retained=is_retained)
            self._by_digest[key] = version
            self._sizes[version] = _size(version)
        return version

    def growth(self, group: bytes | None, added: Holding, removed: Holding) -> Growth:
        """Returns the bytes that `replace` would add. `group` is None for a namespace without one."""
        own_bytes = added.own_bytes - removed.own_bytes
        total = self._total.growth_of_versions(added, removed)
        if group is None:
            return Growth(0, total + own_bytes, total)
        uses = self._of_group.get(group) or _Uses(self._sizes)
        of_group = uses.growth_of_versions(added, removed)
        return Growth(of_group + own_bytes, total + own_bytes, max(of_group, total))

    def replace(self, group: bytes | None, added: Holding, removed: Holding) -> None:
        self._total.replace(added, removed)
        if group is None:
            return
        uses = self._of_group.setdefault(group, _Uses(self._sizes))
        uses.replace(added, removed)
        if uses.is_empty:
            del self._of_group[group]


def _size(version: ResolvedVersion) -> int:
    """Returns the bytes of a version and of all objects that only it refers to."""
    seen: set[int] = set()
    pending: list[Any] = [version]
    size = 0
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        pending += gc.get_referents(value)
    return size
