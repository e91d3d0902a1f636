"""LRU cache with a limit in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_ENTRY_BYTES: Final = 200
"""Estimate of the memory that an entry needs beside its key and value."""


class _Entry(NamedTuple, Generic[Value]):
    value: Value
    size_bytes: int


class ByteCache(Generic[Key, Value]):
    """LRU cache. If its entries exceed `limit_bytes`, the least recently used ones are evicted.

    `size_of` returns the bytes of a key with its value. A value may grow: `get` measures it again.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[Key, Value], int]) -> None:
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self.put(key, entry.value)
        return entry.value

    def put(self, key: Key, value: Value) -> None:
        """Stores a value. A value above the limit is not stored."""
        size_bytes = self._size_of(key, value) + _ENTRY_BYTES
        before = self._entries.pop(key, None)
        if before is not None:
            self.size_bytes -= before.size_bytes
        if size_bytes > self._limit_bytes:
            return
        self._entries[key] = _Entry(value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._limit_bytes:
            self.size_bytes -= self._entries.popitem(last=False)[1].size_bytes
