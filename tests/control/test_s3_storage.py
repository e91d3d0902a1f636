"""Builds, sites and pictures in an S3 bucket."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from tests.control.site_files import file_fields
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server, running_s3
from tests.support.upload_files import put, put_all, tar

pytestmark = [pytest.mark.anyio, pytest.mark.full, pytest.mark.timeout(180)]

SITE: Final = {"index.html": b"<h1>bucket</h1>", "level.bin": bytes(range(256)) * 2048}
PREFIX: Final = "hosting/"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


def public(server: S3Server) -> str:
    """Returns the public address of the S3 server, a host name. The service itself uses the IP address."""
    return server.endpoint.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def full_service(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    settings = {
        "bucket": BUCKET,
        "endpoint": s3.endpoint,
        "public_endpoint": public(s3),
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "prefix": PREFIX,
    }
    with running(FullService(tmp_path_factory.mktemp("s"), s3=settings)) as full_service:
        yield full_service


@pytest.fixture
async def browser(full_service: FullService) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://{full_service.ready['cdn']}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def prepared(developer: Developer, content: bytes, **more: Any) -> Any:
    image = {"path": "a.tar", "content_length": len(content), **more.pop("image", {})}
    fields: dict[str, Any] = {"game_id": await developer.game(), "display_name": "x"}
    return await developer.good("create_game_build", **fields, image_file=image, **more)


def names(server: S3Server, folder: str) -> list[str]:
    paths = (server.folder / BUCKET / PREFIX / folder).rglob("*")
    return [path.name for path in paths if path.is_file()]


async def test_build_is_put_to_the_public_address(s3: S3Server, developer: Developer) -> None:
    content = tar()
    digest = hashlib.sha256(content).hexdigest()
    upload = await prepared(developer, content, image={"sha256": digest})
    request = upload["image_presigned_request"]
    assert request["url"].startswith(f"{public(s3)}/{BUCKET}/{PREFIX}pending/")
    code = await developer.code("complete_upload", upload_id=upload["upload_id"])
    assert code == "UPLOAD_INCOMPLETE"
    assert (await put(request, content)).status_code == 200
    await developer.good("complete_upload", upload_id=upload["upload_id"])
    repeat_code = await developer.code("complete_upload", upload_id=upload["upload_id"])
    assert repeat_code == "UPLOAD_ALREADY_COMPLETE"
    # The presigned URL is still valid, but a second PUT no longer changes the build.
    assert (await put(request, b"x" * len(content))).status_code == 200


async def test_invalid_archive_or_digest_leaves_nothing(s3: S3Server, owner: Developer) -> None:
    content = tar()
    wrong = hashlib.sha256(b"another").hexdigest()
    images: tuple[dict[str, Any], ...] = ({}, {"sha256": wrong})
    for uploaded, image in zip((b"x" * len(content), content), images, strict=True):
        upload = await prepared(owner, content, image=image)
        assert (await put(upload["image_presigned_request"], uploaded)).status_code == 200
        code = await owner.code("complete_upload", upload_id=upload["upload_id"])
        assert code == "VALIDATION_FAILED"
        assert names(s3, f"kept/{upload['upload_id']}") == []


class DeployedSite:
    def __init__(self, developer: Developer, browser: httpx.AsyncClient) -> None:
        self.developer = developer
        self.browser = browser

    async def build(self) -> DeployedSite:
        game_id = await self.developer.game()
        target: dict[str, Any] = {"game_id": game_id}
        site = {**target, "display_name": "1", "files": file_fields(SITE)}
        response = await self.developer.good("create_site", **site)
        await put_all(response["presigned_requests"], SITE)
        await self.developer.good("complete_upload", upload_id=response["upload_id"])
        version_id = await self.developer.version(
            game_id, {"cdn": {"site_id": response["site_id"]}}
        )
        target |= {"namespace_id": "prod"}
        await self.developer.good("set_version", **target, version_id=version_id)
        self.name = (await self.developer.good("get_game", game_id=game_id))["game"]["name_id"]

        async def is_shown() -> bool:
            return (await self.get("")).content == SITE["index.html"]

        await eventually(is_shown)
        return self

    async def get(self, path: str, **headers: str) -> httpx.Response:
        url = f"/{self.name}/prod/{path}"
        request_headers = {one.replace("_", "-"): text for one, text in headers.items()}
        return await self.browser.get(url, headers=request_headers)


async def test_site_is_served_from_the_bucket(owner: Developer, browser: httpx.AsyncClient) -> None:
    site = await DeployedSite(owner, browser).build()
    whole = await site.get("level.bin")
    assert (whole.status_code, whole.content) == (200, SITE["level.bin"])
    tag = whole.headers["etag"]
    unchanged = await site.get("level.bin", if_none_match=tag)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    part = await site.get("level.bin", range="bytes=1000-1003", if_range=tag)
    assert (part.status_code, part.content) == (206, SITE["level.bin"][1000:1004])
    assert part.headers["content-range"] == f"bytes 1000-1003/{len(SITE['level.bin'])}"
    beyond = await site.get("level.bin", range=f"bytes={len(SITE['level.bin'])}-")
    assert beyond.status_code == 416


def fields_with_digests(contents: dict[str, bytes]) -> list[dict[str, Any]]:
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}
    return [{**fields, "sha256": digests[fields["path"]]} for fields in file_fields(contents)]


async def site_with_digests(
    developer: Developer, game_id: str, contents: dict[str, bytes]
) -> tuple[Any, list[str]]:
    """Prepares a site. Returns the response, and the paths of the files that the bucket lacks."""
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1"}
    fields["files"] = fields_with_digests(contents)
    response = await developer.good("create_site", **fields)
    return response, [request["path"] for request in response["presigned_requests"]]


async def test_bucket_copies_unchanged_files_of_an_earlier_site(
    s3: S3Server, owner: Developer, browser: httpx.AsyncClient
) -> None:
    game_id = await owner.game()
    # Names that a header with the source of a copy must escape, and an empty file.
    odd = ["a b+c.html", "100%.txt", "%2e.txt", "ä/ö\u2603.bin", "q?x=1&y.txt", 'it\'s "#1".txt']
    first = {**SITE, **{path: path.encode() for path in odd}, "empty.txt": b""}
    response, missing = await site_with_digests(owner, game_id, first)
    assert sorted(missing) == sorted(first)
    await put_all(response["presigned_requests"], first)
    await owner.good("complete_upload", upload_id=response["upload_id"])
    # One file has changed, one has moved, and one is lost in the bucket.
    second = {**first, "index.html": b"changed", "moved.bin": first["level.bin"]}
    objects = (path for path in (s3.folder / BUCKET / PREFIX).rglob("*") if path.is_file())
    next(path for path in objects if path.read_bytes() == b"100%.txt").unlink()
    again, missing = await site_with_digests(owner, game_id, second)
    assert sorted(missing) == ["100%.txt", "index.html"]
    code = await owner.code("complete_upload", upload_id=again["upload_id"])
    assert code == "UPLOAD_INCOMPLETE"
    await put_all(again["presigned_requests"], second)
    await owner.good("complete_upload", upload_id=again["upload_id"])
    # The copies do not depend on the site that they were copied from.
    assert names(s3, f"kept/{response['upload_id']}")
    await owner.good("delete_site", game_id=game_id, site_id=response["site_id"])

    async def is_deleted() -> bool:
        return not names(s3, f"kept/{response['upload_id']}")

    await eventually(is_deleted)
    version_id = await owner.version(game_id, {"cdn": {"site_id": again["site_id"]}})
    target = {"game_id": game_id, "namespace_id": "prod"}
    await owner.good("set_version", **target, version_id=version_id)
    name = (await owner.good("get_game", game_id=game_id))["game"]["name_id"]

    async def served() -> bool:
        answers = {path: await browser.get(f"/{name}/prod/{quote(path)}") for path in second}
        return {path: answer.content for path, answer in answers.items()} == second

    await eventually(served)


async def test_unavailable_bucket_copies_files_at_the_next_try(
    s3: S3Server, owner: Developer
) -> None:
    game_id = await owner.game()
    response, _ = await site_with_digests(owner, game_id, SITE)
    await put_all(response["presigned_requests"], SITE)
    await owner.good("complete_upload", upload_id=response["upload_id"])
    files = {**SITE, "new.txt": b"new"}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "2"}
    fields["files"] = fields_with_digests(files)
    key = str(uuid4())
    s3.kill()
    try:
        refusal = await owner.call("create_site", key, **fields)
    finally:
        s3.revive()
    assert refusal.code == "CONTROL_PLANE_UNAVAILABLE", refusal
    prepared = await owner.good("create_site", key, **fields)
    assert [request["path"] for request in prepared["presigned_requests"]] == ["new.txt"]


async def test_unavailable_bucket_is_reported_and_recovers(
    s3: S3Server, owner: Developer, browser: httpx.AsyncClient
) -> None:
    site = await DeployedSite(owner, browser).build()
    upload = await prepared(owner, tar())
    assert (await put(upload["image_presigned_request"], tar())).status_code == 200
    s3.kill()
    try:
        upload_id = upload["upload_id"]
        refusal = await owner.call("complete_upload", upload_id=upload_id)
        assert refusal.code == "CONTROL_PLANE_UNAVAILABLE", refusal
        assert int(refusal.headers["retry-after"]) > 0
        page = await site.get("index.html")
        assert (page.status_code, int(page.headers["retry-after"]) > 0) == (503, True)
        later = await prepared(owner, tar())
    finally:
        s3.revive()
    await owner.good("complete_upload", upload_id=upload_id)
    assert (await put(later["image_presigned_request"], tar())).status_code == 200
    await owner.good("complete_upload", upload_id=later["upload_id"])
    assert (await site.get("index.html")).content == SITE["index.html"]


async def test_object_lost_by_the_bucket_is_not_found(
    s3: S3Server, owner: Developer, browser: httpx.AsyncClient
) -> None:
    site = await DeployedSite(owner, browser).build()
    upload = await prepared(owner, tar())
    assert (await put(upload["image_presigned_request"], tar())).status_code == 200
    for folder in ("kept", "pending"):
        for path in (s3.folder / BUCKET / PREFIX / folder).rglob("*"):
            if path.is_file():
                path.unlink()
    assert (await site.get("index.html")).status_code == 404
    assert (await site.get("level.bin", range="bytes=0-3")).status_code == 404
    code = await owner.code("complete_upload", upload_id=upload["upload_id"])
    assert code == "UPLOAD_INCOMPLETE"
