from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final

from pyservice.cdn.app import Cdn, CdnCounts
from pyservice.cdn.server import CdnServer
from pyservice.cdn.site_records import SiteRecords
from pyservice.cdn.uploads import UploadReceiver
from pyservice.control.signing_keys import KEY_RETENTION_MS, SigningKeyFile, SigningKeys
from pyservice.control.uploads import object_key
from pyservice.edge.http_server import listen_unix
from pyservice.observability.rays import Rays
from pyservice.settings import Settings
from pyservice.storage.database import Database
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.s3_objects import BucketSettings, S3BlobStore
from pyservice.storage.signed_urls import RetiredKey, UrlSigner
from pyservice.watch import Topics

_PURPOSE: Final = b"url"


class ObjectsAndCdn:
    """Object store and CDN server of the control plane."""

    def __init__(
        self, settings: Settings, folder: Path, base_url: str, keys: SigningKeyFile
    ) -> None:
        self._settings = settings
        self._signer = UrlSigner(_url_key(keys.now)[0], is_lasting=_is_picture)
        keys.listen(lambda now: self._signer.take(*_url_key(now)))
        self._folder: FolderBlobStore | None = None
        if settings.s3 is None:
            reserve_bytes = settings.storage_reserve_bytes
            self._folder = FolderBlobStore(
                folder / "objects", self._signer, base_url, reserve_bytes
            )
            self.objects = Objects(self._folder, self._signer, base_url)
        else:
            self.objects = Objects(_bucket(settings), self._signer, base_url)
        self._cdn: Cdn | None = None
        self._server: CdnServer | None = None

    @property
    def cdn_counts(self) -> CdnCounts:
        return self._cdn.counts if self._cdn is not None else CdnCounts()

    @property
    def cdn_cache_bytes(self) -> int:
        return self._cdn.cache_bytes if self._cdn is not None else 0

    def picture(self, name: str) -> str:
        """Returns the signed URL of a picture. `name` is its upload id, followed by `.png` or
        `.jpeg`.
        """
        upload_id, _, kind = name.partition(".")
        key = object_key("avatar", upload_id, name)
        return self.objects.presign_get(key, None, content_type=f"image/{kind}")

    async def start(
        self, database: Database, topics: Topics, listener: socket.socket, rays: Rays
    ) -> None:
        sites = SiteRecords(database, topics)
        settings = self._settings
        self._cdn = Cdn(
            sites,
            self.objects,
            settings.domains.cdn,
            settings.trusted_proxies,
            rays=rays,
        )
        uploads = None
        if self._folder is not None:
            domain = settings.domains.cdn
            uploads = UploadReceiver(self._folder, self._signer, self.objects.counts, domain, rays)
        listeners = [listener]
        if settings.cdn_hosts:
            listeners.append(listen_unix(settings.edge_cdn_socket))
        self._server = CdnServer(self._cdn, listeners, uploads, settings.trusted_proxies)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stops the CDN. Call this method before the database is closed."""
        if self._server is not None:
            await self._server.stop(grace_s)
        if self._cdn is not None:
            await asyncio.to_thread(self._cdn.close)

    async def close(self) -> None:
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)


def _url_key(keys: SigningKeys) -> tuple[bytes, list[RetiredKey]]:
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
