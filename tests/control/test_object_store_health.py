"""Health check of the object store: a folder and an S3 bucket that are lost and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from pyservice.control.object_store_health import ObjectStoreHealthCheck
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.signed_urls import UrlSigner
from tests.support.blob_stores import bucket_store
from tests.support.cdn_listener import KEY
from tests.support.command_line import run
from tests.support.full_service import FullService, eventually
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, running_s3
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with running_s3(tmp_path / "s3" / "buckets") as server:
        yield server


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[FolderBlobStore]:
    store = FolderBlobStore(tmp_path / "objects", UrlSigner(KEY), "", 0)
    yield store
    store.close()


async def test_removed_folder_is_reported_until_it_is_back(
    folder: FolderBlobStore, tmp_path: Path
) -> None:
    watch = ObjectStoreHealthCheck(folder.check, "control/objects")
    await watch.check()
    assert watch.problem == ""
    (tmp_path / "objects").rename(tmp_path / "aside")
    await watch.check()
    assert (
        watch.problem == "control/objects cannot be used: cannot write to incoming, pending, kept"
    )
    (tmp_path / "aside").rename(tmp_path / "objects")
    await watch.check()
    assert (watch.problem, watch.job.unexpected_errors) == ("", 0)


async def test_stopped_server_and_missing_bucket_are_reported(s3: S3Server) -> None:
    watch = ObjectStoreHealthCheck(bucket_store(s3, "hosting/").check, "the bucket")

    async def has_problem(expected: bool) -> bool:
        await watch.check()
        return bool(watch.problem) is expected

    await eventually(lambda: has_problem(False))
    s3.kill()
    await watch.check()
    assert watch.problem == "the bucket cannot be used: HTTP error: error sending request"
    s3.revive()
    await eventually(lambda: has_problem(False))
    (s3.folder / BUCKET).rename(s3.folder / "another")
    await watch.check()
    assert "404 Not Found" in watch.problem
    assert "NoSuchBucket" in watch.problem
    assert "\n" not in watch.problem
    assert watch.job.unexpected_errors == 0


async def test_store_without_an_answer_has_a_timeout() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    watch = ObjectStoreHealthCheck(hang, "the bucket", timeout_s=0.01)
    async with asyncio.timeout(PATIENCE_S):
        await watch.check()
    assert watch.problem == "the bucket cannot be used: no answer in 0.01 s"


@pytest.mark.full
async def test_service_shows_a_stopped_s3_server(s3: S3Server, tmp_path: Path) -> None:
    settings = {
        "bucket": BUCKET,
        "endpoint": s3.endpoint,
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
    }
    service = FullService(tmp_path / "s", s3=settings)
    try:
        await asyncio.to_thread(service.start)
        address = f"http://{service.ready['metrics']}"
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:

            async def shows(line: str, gauge: int) -> bool:
                readiness = await client.get("/readyz?verbose")
                metrics = (await client.get("/metrics")).text
                return (
                    readiness.is_success
                    and f"\nobject_store: {line}\n" in readiness.text
                    and f"\nhosting_control_object_store_up {gauge}\n" in metrics
                )

            await eventually(lambda: shows("ok", 1))
            s3.kill()
            reason = "HTTP error: error sending request"
            problem = f"bucket {BUCKET} at {s3.endpoint} cannot be used: {reason}"
            shown = f"{problem}; players are served"
            await eventually(lambda: shows(shown, 0))
            status = await asyncio.to_thread(run, service.data_dir, "status")
            assert status.returncode == 1
            assert f"object_store: down, {shown}\n" in status.stdout
            s3.revive()
            await eventually(lambda: shows("ok", 1))
            status = await asyncio.to_thread(run, service.data_dir, "status")
            assert (status.returncode, status.stderr) == (0, "")
            assert "object_store: up\n" in status.stdout
        assert '"event": "object store unhealthy"' in service.log()
    finally:
        service.close()
