"""CDN listener with objects in a bucket: it reads from the bucket, and uploads go to the bucket
directly.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from pyservice.cdn.app import Cdn
from pyservice.cdn.server import CdnServer
from pyservice.cdn.sites import Site, SiteFile
from pyservice.errors import ServiceError
from pyservice.storage.objects import Objects, Part
from pyservice.storage.s3_objects import BucketSettings, S3BlobStore
from pyservice.storage.signed_urls import UrlGrant, UrlSigner
from tests.support.blob_stores import open_bucket_store
from tests.support.cdn_listener import KEY, MemorySites
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, running_s3

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 4096


async def test_sites_and_signed_urls_are_served_from_the_bucket(tmp_path: Path) -> None:
    with running_s3(tmp_path / "buckets") as server:
        async with open_bucket_store(server, "hosting") as opened:
            await opened.store("site/a", CONTENT)
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            signer = UrlSigner(KEY)
            objects = Objects(opened.blobs, signer, url)
            site = Site({"a.bin": SiteFile("site/a", len(CONTENT), 0)})
            cdn = Cdn(MemorySites({("arena", "prod"): site}), objects, None)
            serving = CdnServer(cdn, [listener], None)
            await serving.start()
            try:
                answer = await opened.client.get(f"{url}/arena/prod/a.bin")
                assert answer.content == CONTENT
                part = {"range": "bytes=1000-1003"}
                answer = await opened.client.get(f"{url}/arena/prod/a.bin", headers=part)
                assert answer.content == CONTENT[1000:1004]
                answer = await opened.client.get(objects.presign_get("site/a", 60), headers=part)
                assert answer.content == CONTENT[1000:1004]
                target = signer.target(UrlGrant("PUT", "site/b", 4_000_000_000, 3))
                answer = await opened.client.put(url + target, content=b"abc")
                assert answer.status_code == 405
                server.process.kill()
                server.process.wait()
                for headers in ({}, part):
                    answer = await opened.client.get(f"{url}/arena/prod/a.bin", headers=headers)
                    assert answer.status_code == 503
                    assert answer.headers["retry-after"]
            finally:
                await serving.stop()
                await asyncio.to_thread(cdn.close)


async def test_bucket_url_is_valid_for_one_part(tmp_path: Path) -> None:
    with running_s3(tmp_path / "buckets") as server:
        async with open_bucket_store(server, "") as opened:
            url = await opened.objects.presign_put("up/a", 3, 60, 0)
            assert url != await opened.objects.presign_put("up/a", 3, 60, 3)
            assert (await opened.client.put(url, content=b"abc")).status_code == 200
            assert (await opened.client.get(url)).status_code == 403
            assert await opened.blobs.lengths(["pending/up/a.0", "pending/up/a.3"]) == [3, None]
            with pytest.raises(ServiceError) as refused:
                await opened.objects.presign_put("up/a", (5 << 30) + 1, 60)
            assert refused.value.code == "UPLOAD_TOO_LARGE"


async def test_clients_use_the_public_endpoint_and_the_service_its_own(
    tmp_path: Path,
) -> None:
    with running_s3(tmp_path / "buckets") as server:
        bucket = S3BlobStore(
            BucketSettings(
                BUCKET,
                endpoint=server.endpoint,
                public_endpoint="https://uploads.example",
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
                prefix="hosting",
            )
        )
        url = await bucket.put_url("up/a", Part(0, 3), 60)
        assert url.startswith(f"https://uploads.example/{BUCKET}/hosting/pending/up/a.0?")
        await bucket.write("kept/up/a", b"abc")
        assert await bucket.lengths(["kept/up/a"]) == [3]
