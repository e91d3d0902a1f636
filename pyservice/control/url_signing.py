"""Signing of object URLs with the keys of the key file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pyservice.control.signing_keys import (
    KEY_FILE,
    KEY_RETENTION_MS,
    SigningKeyFile,
    SigningKeys,
    read_keys,
)
from pyservice.control.uploads import object_key
from pyservice.storage.signed_urls import RetiredKey, UrlGrant, UrlSigner

_PURPOSE: Final = b"url"


def url_signer(keys: SigningKeyFile) -> UrlSigner:
    """Returns the signer of the process that owns the key file."""
    signer = UrlSigner(*_url_keys(keys.now), is_lasting=_is_picture)
    keys.listen(lambda now: signer.take(*_url_keys(now)))
    return signer


class UrlVerifier(UrlSigner):
    """Verifies URLs in a process that only reads the key file.

    It reads a new key file before it verifies the next URL, so that a rotation applies at once.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / KEY_FILE
        self._version = self._file_version()
        super().__init__(*_url_keys(read_keys(self._path)), is_lasting=_is_picture)

    def verify(self, method: str, path: str, query: bytes, now_s: float) -> UrlGrant:
        version = self._file_version()
        if version != self._version:
            self.take(*_url_keys(read_keys(self._path)))
            self._version = version
        return super().verify(method, path, query, now_s)

    def _file_version(self) -> tuple[int, int]:
        # The owner replaces the file by a rename.
        status = os.stat(self._path)
        return status.st_ino, status.st_mtime_ns


def _url_keys(keys: SigningKeys) -> tuple[bytes, Sequence[RetiredKey]]:
    retired = [
        RetiredKey(key.derive(_PURPOSE), (key.ended_ms + KEY_RETENTION_MS) / 1000)
        for key in keys.signing
        if key.ended_ms is not None
    ]
    return keys.current.derive(_PURPOSE), retired


def _is_picture(key: str) -> bool:
    return key.endswith(object_key("avatar", "", ""))
