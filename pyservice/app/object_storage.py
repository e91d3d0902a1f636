"""Object store of the settings, and the signing of its URLs."""

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
from pyservice.settings import Settings
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.s3_objects import BucketSettings, S3BlobStore
from pyservice.storage.signed_urls import RetiredKey, UrlGrant, UrlSigner

_PURPOSE: Final = b"url"


class ObjectStorage:
    """Objects in the folder or bucket of the settings. `folder` is None for a bucket.

    The process that receives uploads sets `is_receiver`.
    """

    def __init__(
        self, settings: Settings, signer: UrlSigner, base_url: str = "", *, is_receiver: bool
    ) -> None:
        self.signer = signer
        self.folder: FolderBlobStore | None = None
        if settings.s3 is None:
            self.folder = FolderBlobStore(
                settings.data_dir / "control" / "objects",
                signer,
                base_url,
                settings.storage_reserve_bytes,
                is_receiver=is_receiver,
            )
        self.objects = Objects(self.folder or _bucket(settings), signer, base_url)

    def picture(self, name: str) -> str:
        """Returns the signed URL of a picture. `name` is its upload id, followed by `.png` or
        `.jpeg`.
        """
        upload_id, _, kind = name.partition(".")
        key = object_key("avatar", upload_id, name)
        return self.objects.presign_get(key, None, content_type=f"image/{kind}")

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()


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


def _bucket(settings: Settings) -> S3BlobStore:
    s3 = settings.s3
    assert s3 is not None
    return S3BlobStore(
        BucketSettings(
            bucket=s3.bucket,
            region=s3.region,
            endpoint=s3.endpoint,
            public_endpoint=s3.public_endpoint,
            access_key_id=s3.access_key_id,
            secret_access_key=s3.secret_access_key.get_secret_value(),
            prefix=s3.prefix,
        )
    )
