"""Objects in a folder and in an S3 bucket, each with a client for signed URLs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from pyservice.storage.objects import BlobStore, Objects, Part, PendingObject
from pyservice.storage.s3_objects import BucketSettings, S3BlobStore
from pyservice.storage.signed_urls import UrlSigner
from tests.support.cdn_listener import KEY, running_listener
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.waiting import PATIENCE_S


@dataclass
class OpenStore:
    objects: Objects
    blobs: BlobStore
    client: httpx.AsyncClient

    async def upload(self, key: str, content: bytes, offset: int = 0) -> httpx.Response:
        url = await self.objects.presign_put(key, len(content), 3600, offset)
        return await self.client.put(url, content=content)

    async def store(self, key: str, content: bytes) -> str:
        answer = await self.upload(key, content)
        assert answer.status_code == 200, answer.text
        await self.objects.complete([PendingObject(key, [Part(0, len(content))])])
        return key

    async def content(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return b"".join([block async for block in self.objects.read(key, start, end)])


@contextlib.asynccontextmanager
async def open_folder_store(folder: Path) -> AsyncIterator[OpenStore]:
    async with (
        running_listener(folder) as listener,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        yield OpenStore(listener.objects, listener.blobs, client)


def bucket_store(server: S3Server, prefix: str) -> S3BlobStore:
    return S3BlobStore(
        BucketSettings(
            BUCKET,
            endpoint=server.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            prefix=prefix,
        )
    )


@contextlib.asynccontextmanager
async def open_bucket_store(server: S3Server, prefix: str) -> AsyncIterator[OpenStore]:
    bucket = bucket_store(server, prefix)
    objects = Objects(bucket, UrlSigner(KEY), "http://127.0.0.1:1")
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        yield OpenStore(objects, bucket, client)


Opens = Callable[[], contextlib.AbstractAsyncContextManager[OpenStore]]


async def put_whole(objects: Objects, key: str, content: bytes) -> None:
    await objects._blobs.write(f"kept/{key}", content)
