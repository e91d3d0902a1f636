"""Versions in the memory of the data plane. Equal ones are held once, and their bytes are counted."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from pyservice.dataplane.resolved_namespace import (
    ResolvedVersion,
    VersionsById,
    resolve_version,
    version_content,
)
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb


class HeldVersions:
    def __init__(self) -> None:
        self._by_digest: WeakValueDictionary[tuple[bool, bytes], ResolvedVersion] = (
            WeakValueDictionary()
        )
        self._uses: Counter[ResolvedVersion] = Counter()
        self._sizes: dict[ResolvedVersion, int] = {}
        self.bytes_held = 0

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
        return version

    def growth(self, added: Iterable[ResolvedVersion], removed: Iterable[ResolvedVersion]) -> int:
        """Returns the number of bytes by which `replace` would change `bytes_held`."""
        added, removed = set(added), set(removed)
        gained = sum(_size(version) for version in added - removed if not self._uses[version])
        lost = sum(self._sizes[version] for version in removed - added if self._uses[version] == 1)
        return gained - lost

    def replace(self, added: Iterable[ResolvedVersion], removed: Iterable[ResolvedVersion]) -> None:
        for version in set(added):
            if not self._uses[version]:
                self._sizes[version] = _size(version)
                self.bytes_held += self._sizes[version]
            self._uses[version] += 1
        for version in set(removed):
            self._uses[version] -= 1
            if not self._uses[version]:
                del self._uses[version]
                self.bytes_held -= self._sizes.pop(version)


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
