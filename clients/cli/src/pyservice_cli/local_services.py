"""Services that run on this machine for this user.

`pyservice serve` announces itself with a file that only its user can read. The command line then
needs no login. The service holds a lock on the file while it runs, and the kernel releases the lock
with the process. So a token is never sent to another program that listens at the address later.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "running"
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class LocalService:
    """A running service of this user on this machine."""

    url: str
    token_file: Path
    announcement: Path

    def is_running(self) -> bool:
        """Returns whether the service runs, which has another announcement after a restart."""
        return _is_locked(self.announcement) or any(
            (other.url, other.token_file) == (self.url, self.token_file)
            for other in _running(self.announcement.parent)
        )

    def token(self) -> str:
        """Returns the owner's token. Raises OSError."""
        return self.token_file.read_text().strip()


class Announcement:
    """The file of a running service, until `withdraw` or the end of the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def publish(cls, url: str, token_file: Path) -> Announcement:
        """Writes the file with mode 0600. Raises OSError."""
        import fcntl

        folder = configuration_folder() / FOLDER
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        for stale in folder.glob("*.json"):
            if not _is_locked(stale):
                stale.unlink(missing_ok=True)
        path = folder / f"{os.getpid()}.json"
        fresh = path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(fresh, flags, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = {"url": url, "token_file": str(token_file.absolute())}
            os.write(descriptor, json.dumps(content).encode())
            # The lock belongs to the open file, so it holds under the new name.
            fresh.rename(path)
        except OSError:
            os.close(descriptor)
            fresh.unlink(missing_ok=True)
            raise
        return cls(path, descriptor)

    def withdraw(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def configuration_folder() -> Path:
    """Returns the folder of this user for profiles. The folder may not exist. Raises OSError."""
    from typer import get_app_dir

    folder = Path(get_app_dir("pyservice"))
    if not folder.is_absolute():
        raise FileNotFoundError("this user has no home folder")
    return folder


def local_url(address: str) -> str | None:
    """Returns the URL at which this machine reaches a plain HTTP listener of its own.

    Returns None for a host name, because its address can be that of another machine.
    """
    host, _, port = address.rpartition(":")
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return f"http://{address}" if host == "localhost" else None
    if ip.is_unspecified:
        return f"http://127.0.0.1:{port}" if ip.version == 4 else f"http://[::1]:{port}"
    return f"http://{address}"


def is_own_address(host: str) -> bool:
    """Returns whether an IP address is one of this machine, so that only its kernel sees the packets."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def running_services() -> list[LocalService]:
    """Returns the running services that this user started on this machine."""
    if os.name != "posix":
        return []
    return sorted(_running(configuration_folder() / FOLDER), key=lambda service: service.url)


def _running(folder: Path) -> Iterator[LocalService]:
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if path.stat().st_uid != os.geteuid() or not _is_locked(path):
                continue
            content = json.loads(path.read_text())
            yield LocalService(content["url"], Path(content["token_file"]), path)


def _is_locked(path: Path) -> bool:
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
