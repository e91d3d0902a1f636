"""Certificates of the connections between the service and its nodes, read again when they are replaced."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.observability.logging import get_logger
from pyservice.settings.kubernetes_section import CERTIFICATE_FILES
from pyservice.transport.native import PublicCertificate

_CHECK_INTERVAL_S: Final = 60.0
_SOON_S: Final = 24 * 3600
_READS_MAX: Final = 20
"""Files that change during each of this many reads are never complete."""

_log = get_logger("nodes")


class CertificatesUnusable(OSError):
    """The files are missing, damaged, expired, or of another name."""


class Pem(NamedTuple):
    """Contents of `ca.crt`, `tls.crt` and `tls.key`."""

    authority: bytes
    certificate: bytes
    key: bytes


class FileStamp(NamedTuple):
    inode: int
    size: int
    changed_ns: int


class _Reading(NamedTuple):
    pem: Pem
    end_s: int
    """End of the validity, in seconds of Unix time."""


def file_stamps(paths: Iterable[Path]) -> list[FileStamp | None]:
    """Returns values that differ if a file is replaced. None: the file cannot be found."""
    stamps: list[FileStamp | None] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append(FileStamp(status.st_ino, status.st_size, status.st_mtime_ns))
    return stamps


class NodeCertificates:
    """Folder with `ca.crt`, `tls.crt` and `tls.key` for a process with the name `host`.

    If replaced files cannot be used, the earlier ones stay, and a log line says why. Several threads
    may use an object.
    """

    def __init__(self, folder: Path, host: str) -> None:
        """Raises CertificatesUnusable."""
        self._paths = [folder / name for name in CERTIFICATE_FILES]
        self._host = host
        self._lock = threading.Lock()
        self._stamps = file_stamps(self._paths)
        self._reading = self._read()

    @property
    def pem(self) -> Pem:
        return self._reading.pem

    @property
    def chain_files(self) -> tuple[Path, Path]:
        """Files with the certificate and with its key."""
        _, certificate, key = self._paths
        return certificate, key

    def refresh(self) -> bool:
        """Reads the files again if they were replaced. Returns whether `pem` has changed."""
        with self._lock:
            stamps = file_stamps(self._paths)
            if stamps == self._stamps:
                return False
            before, self._stamps = self._reading, stamps
            try:
                self._reading = self._read()
            except CertificatesUnusable as error:
                _log.error("certificates not replaced", problem=str(error))
            return self._reading.pem != before.pem

    async def run(self) -> None:
        """Logs each minute that the certificate has expired or ends within a day."""
        while True:
            self.refresh()
            left_s = self._reading.end_s - time.time()
            if left_s < _SOON_S:
                certificate, _ = self.chain_files
                log_event = _log.error if left_s <= 0 else _log.warning
                log_event("certificate ends", file=str(certificate), left_s=round(left_s))
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def _read(self) -> _Reading:
        for _ in range(_READS_MAX):
            stamps = file_stamps(self._paths)
            try:
                reading = self._read_once()
            except CertificatesUnusable:
                if stamps == file_stamps(self._paths):
                    raise
            else:
                if stamps == file_stamps(self._paths):
                    return reading
        raise CertificatesUnusable(f"{self._paths[0].parent}: the files change all the time")

    def _read_once(self) -> _Reading:
        try:
            pem = Pem(*(path.read_bytes() for path in self._paths))
        except OSError as error:
            raise CertificatesUnusable(f"{error.filename}: {error.strerror}") from None
        certificate, key = self.chain_files
        problems, invalid_now, _ = PublicCertificate.judge(certificate, key, [self._host])
        problems += [*invalid_now, *_authority_problems(self._paths[0], pem.authority)]
        if problems:
            raise CertificatesUnusable("; ".join(problems))
        try:
            end_s = PublicCertificate.read(certificate, key).end_s()
        except ValueError as error:
            raise CertificatesUnusable(str(error)) from None
        assert end_s is not None
        return _Reading(pem, end_s)


def _authority_problems(path: Path, content: bytes) -> list[str]:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii")
        )
    except (ssl.SSLError, ValueError) as error:
        return [f"{path}: has no certificate in PEM: {error}"]
    return []
