"""Versions in the memory of the data plane. Equal ones are held once, and their bytes are counted."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyservice.dataplane.resolved_namespace import (
    ResolvedVersion,
    VersionsById,
    resolve_version,
    version_content,
)
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb


class Growth(NamedTuple):
    """Bytes that a change would add to the versions of a group, and to those of all namespaces."""

    group: int
    total: int


class _VersionUses:
    """Counts the namespaces that use each version, and the bytes of all versions in use."""

    def __init__(self, sizes: Mapping[ResolvedVersion, int]) -> None:
        self._sizes = sizes
        self._uses: Counter[ResolvedVersion] = Counter()
        self.bytes_held = 0

    @property
    def is_empty(self) -> bool:
        return not self._uses

    def growth(self, added: Set[ResolvedVersion], removed: Set[ResolvedVersion]) -> int:
        gained = sum(self._sizes[version] for version in added - removed if not self._uses[version])
        lost = sum(self._sizes[version] for version in removed - added if self._uses[version] == 1)
        return gained - lost

    def replace(self, added: Set[ResolvedVersion], removed: Set[ResolvedVersion]) -> None:
        for version in added:
            if not self._uses[version]:
                self.bytes_held += self._sizes[version]
            self._uses[version] += 1
        for version in removed:
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                self.bytes_held -= self._sizes[version]


class HeldVersions:
    """Versions of all namespaces. A group counts each of its versions in full, also if namespaces
    of other groups share it.
    """

    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[tuple[bool, bytes], ResolvedVersion] = (
            WeakValueDictionary()
        )
        self._sizes: WeakKeyDictionary[ResolvedVersion, int] = WeakKeyDictionary()
        self._total = _VersionUses(self._sizes)
        self._of_group: dict[bytes, _VersionUses] = {}

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

    def growth(
        self,
        group: bytes | None,
        added: Iterable[ResolvedVersion],
        removed: Iterable[ResolvedVersion],
    ) -> Growth:
        """Returns the bytes that `replace` would add. `group` is None for a namespace without one."""
        change = set(added), set(removed)
        uses = self._of_group.get(group) if group else None
        of_group = (uses or _VersionUses(self._sizes)).growth(*change) if group else 0
        return Growth(of_group, self._total.growth(*change))

    def replace(
        self,
        group: bytes | None,
        added: Iterable[ResolvedVersion],
        removed: Iterable[ResolvedVersion],
    ) -> None:
        change = set(added), set(removed)
        self._total.replace(*change)
        if group is None:
            return
        uses = self._of_group.setdefault(group, _VersionUses(self._sizes))
        uses.replace(*change)
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
