"""What an engine is opened with: keys, and what the operator sets. Opening it is `engine`'s."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Keys(Protocol):
    """What signs and hashes."""

    @property
    def mac_keys(self) -> tuple[tuple[int, bytes], ...]: ...
    @property
    def current_key(self) -> int: ...
    @property
    def hash_key(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Times and sizes that the operator may set."""

    find_wait_ms: int = 45_000
    start_limit_ms: int = 300_000
    port_rest_ms: int = 60_000
    segment_bytes: int = 64 << 20
    boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id")
