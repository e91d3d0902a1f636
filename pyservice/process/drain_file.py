"""File of a drain in the data directory. All processes of the service read there when it is over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.durable_files import sync_folder, write_file
from pyservice.errors import ServiceError
from pyservice.settings import Settings

SERVERS_END_S: Final = 40.0
"""Longest time in which the control plane ends all game servers. Each of them has 30 s."""

_NAME: Final = "drain.json"
_POLL_INTERVAL_S: Final = 0.25
_RETRY_AFTER_S: Final = 10
_DRAINS: Final = (
    "This machine drains: it starts no new lobby and no new server, and lobbies that run accept"
    " players until they end. Try again after Retry-After, when another machine may serve you."
)


class Drain(NamedTuple):
    deadline_boot_ms: int
    """Time of the boot clock, which no step of the wall clock changes."""
    is_over: bool = False
    """Whether the service must end its game servers and exit."""


class DrainFile:
    """A drain survives crashes of the service, and ends with the boot of the machine.

    No game server survives a reboot. So after a crash of the machine nothing is left to drain.
    """

    def __init__(self, data_dir: Path, boot_id_path: Path) -> None:
        self._path = data_dir / _NAME
        self._boot_id_path = boot_id_path

    @classmethod
    def of(cls, settings: Settings) -> DrainFile:
        return cls(settings.data_dir, settings.journal.boot_id_path)

    def read(self) -> Drain | None:
        """Returns the drain of this boot. An unreadable file counts as no drain."""
        stored = _read(self._path)
        return stored[0] if stored is not None and stored[1] == self._boot_id() else None

    def refusal(self) -> ServiceError | None:
        """Returns why no new server may start, or None if the machine does not drain."""
        return None if self.read() is None else drain_refusal()

    def write(self, drain: Drain) -> None:
        """Raises OSError."""
        content = {**drain._asdict(), "boot_id": self._boot_id()}
        write_file(self._path, json.dumps(content).encode() + b"\n")

    def remove(self) -> None:
        """Raises OSError."""
        if self._path.exists():
            self._path.unlink()
            sync_folder(self._path.parent)

    def forget_ended(self) -> None:
        """Removes the file of a drain that ended an earlier service. Raises OSError."""
        drain = self.read()
        if drain is not None and drain.is_over:
            self.remove()

    def cancel_at_stop(self) -> None:
        """Ends a drain that an orderly stop interrupts, so that the next start serves again."""
        drain = self.read()
        if drain is not None and not drain.is_over:
            self.remove()

    async def wait_until_over(self) -> None:
        """Waits until a drain is over. A drain that was over before this call does not count."""
        before = self.read()
        while True:
            drain = self.read()
            if drain is not None and drain.is_over and drain != before:
                return
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _boot_id(self) -> str:
        return self._boot_id_path.read_text().strip()


def stored_drain(data_dir: Path) -> Drain | None:
    """Returns the drain in a data directory, of any boot."""
    stored = _read(data_dir / _NAME)
    return None if stored is None else stored[0]


def _read(path: Path) -> tuple[Drain, str] | None:
    """Returns a drain and its boot ID."""
    try:
        content = json.loads(path.read_bytes())
        drain = Drain(int(content["deadline_boot_ms"]), bool(content["is_over"]))
        return drain, str(content["boot_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def drain_refusal() -> ServiceError:
    """Returns the error of a request that needs a new lobby or server while the machine drains."""
    return ServiceError(
        "SHUTTING_DOWN", _DRAINS, metadata={"reason": "draining"}, retry_after_s=_RETRY_AFTER_S
    )


def ends_servers(settings: Settings) -> bool:
    """Returns whether a stop of the service now ends its game servers."""
    drain = DrainFile.of(settings).read()
    return settings.runtime.end_with_service or (drain is not None and drain.is_over)
