"""Encryption of backups by age (age-encryption.org). The service has only public keys."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import pyrage

_READ_BYTES: Final = 1 << 20

Blocks = Iterator[bytes]


class KeyUnusable(Exception):
    """A key of the operator is missing, damaged, or not the one of the backup."""


class Encryption:
    """Encrypts for `recipients`, which are public keys, and decrypts with the private keys of a file."""

    def __init__(self, recipients: Sequence[str] = (), identity_file: Path | None = None) -> None:
        # The settings have checked them.
        self._recipients = [pyrage.x25519.Recipient.from_str(one) for one in recipients]
        self._identities = [] if identity_file is None else _identities(identity_file)
        self.fingerprint = _fingerprint(self._recipients)
        """Digest of all recipients. Empty without any."""

    @property
    def can_decrypt(self) -> bool:
        return bool(self._identities)

    def encrypted(self, blocks: Blocks) -> Blocks:
        if not self._recipients:
            return blocks
        return _transformed(
            lambda plain, sealed: pyrage.encrypt_io(plain, sealed, self._recipients), blocks
        )

    def decrypted(self, blocks: Blocks) -> Blocks:
        """Raises KeyUnusable if none of the private keys fits, or if the content was changed."""
        if not self._identities:
            raise KeyUnusable(
                "the backup is encrypted: name the file of the private key with --identity"
            )
        try:
            yield from _transformed(
                lambda sealed, plain: pyrage.decrypt_io(sealed, plain, self._identities), blocks
            )
        except pyrage.DecryptError as error:
            raise KeyUnusable(
                f"the backup cannot be decrypted: {error}: check --identity"
            ) from None


def _fingerprint(recipients: Sequence[pyrage.x25519.Recipient]) -> str:
    keys = sorted({str(one) for one in recipients})
    return hashlib.sha256(" ".join(keys).encode()).hexdigest()[:16] if keys else ""


def _identities(file: Path) -> list[Any]:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise KeyUnusable(f"{file} cannot be read: {error.strerror}") from None
    words = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    try:
        found = [pyrage.x25519.Identity.from_str(word) for word in words]
    except pyrage.IdentityError:
        found = []
    if not found:
        raise KeyUnusable(
            f"{file} has no private key such as AGE-SECRET-KEY-1...: create one with age-keygen"
        )
    return found


class _Reader(io.RawIOBase):
    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        length = min(len(buffer), len(self._rest))
        buffer[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length


def _transformed(transform: Callable[[IO[bytes], IO[bytes]], None], blocks: Blocks) -> Blocks:
    """Yields what `transform` writes while it reads the blocks. It runs in a thread."""
    read_end, write_end = os.pipe()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with open(write_end, "wb") as output:
                transform(io.BufferedReader(_Reader(blocks), _READ_BYTES), output)
        except BaseException as error:  # noqa: BLE001 — the reader raises it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # A reader that stops early closes its end, and the next write of the thread fails.
    with open(read_end, "rb") as output:
        while block := output.read(_READ_BYTES):
            yield block
    thread.join()
    if errors:
        raise errors[0]
