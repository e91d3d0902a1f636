"""Object store of the settings."""

from __future__ import annotations

from obstore.store import LocalStore, S3Store

from pyservice.settings import Settings
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.s3_objects import BucketSettings, S3BlobStore
from pyservice.storage.signed_urls import UrlSigner


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
        self.location = _location(settings)

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()


def _location(settings: Settings) -> str:
    """Returns a name of the store for the operator."""
    if settings.s3 is None:
        return "control/objects"
    return f"bucket {settings.s3.bucket} at {settings.s3.endpoint or 'AWS'}"


def object_store(settings: Settings) -> LocalStore | S3Store:
    """Returns the store of all objects by name, for backups."""
    if settings.s3 is not None:
        return _bucket(settings).store
    folder = settings.data_dir / "control" / "objects"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return LocalStore(prefix=folder)


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
