"""Objects in a folder and in an S3 bucket: parts, completion, reading, deletion, sweeping."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from pyservice.errors import ServiceError
from pyservice.storage.objects import (
    MULTIPART_FROM_BYTES,
    PART_BYTES,
    Part,
    PendingObject,
    file_key,
    is_file_path,
    plan_parts,
)
from tests.support.blob_stores import OpenStore, open_bucket_store, open_folder_store, put_whole
from tests.support.s3_server import S3Server, running_s3

pytestmark = pytest.mark.anyio

CONTENT = b"0123456789" * 1000


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    if request.param == "folder":
        async with open_folder_store(tmp_path / "objects") as opened:
            yield opened
    else:
        async with open_bucket_store(request.getfixturevalue("s3"), secrets.token_hex(4)) as opened:
            yield opened


async def test_completed_upload_is_kept(opened: OpenStore) -> None:
    answer = await opened.upload("up/a", CONTENT)
    assert answer.status_code == 200
    assert await opened.objects.stat("up/a") is None
    await opened.objects.complete([PendingObject("up/a", [Part(0, len(CONTENT))])])
    assert await opened.objects.stat("up/a") == len(CONTENT)
    assert await opened.content("up/a") == CONTENT
    assert await opened.content("up/a", 5, 12) == CONTENT[5:12]
    assert await opened.content("up/a", 9_990, 20_000) == CONTENT[9_990:]
    assert (
        await opened.objects.digest("up/a", asyncio.to_thread)
        == hashlib.sha256(CONTENT).hexdigest()
    )


async def test_parts_in_any_order_form_one_object(opened: OpenStore) -> None:
    parts = [Part(0, 4000), Part(4000, 4000), Part(8000, 2000)]
    for offset, length in reversed(parts):
        answer = await opened.upload("up/b", CONTENT[offset : offset + length], offset)
        assert answer.status_code == 200
    await opened.objects.complete([PendingObject("up/b", parts)])
    assert await opened.objects.stat("up/b") == len(CONTENT)
    assert await opened.content("up/b") == CONTENT
    assert await opened.content("up/b", 3_999, 8_001) == CONTENT[3_999:8_001]
    assert await opened.content("up/b", 4_000, 4_001) == CONTENT[4_000:4_001]
    assert (
        await opened.objects.digest("up/b", asyncio.to_thread)
        == hashlib.sha256(CONTENT).hexdigest()
    )


async def test_completion_with_a_missing_part_is_rejected(
    opened: OpenStore,
) -> None:
    parts = [Part(0, 4000), Part(4000, 6000)]
    await opened.upload("up/c", CONTENT[:4000])
    await opened.upload("up/d", CONTENT)
    whole = PendingObject("up/d", [Part(0, len(CONTENT))], "d")
    with pytest.raises(ServiceError, match="1 of 3") as refused:
        await opened.objects.complete([whole, PendingObject("up/c", parts, "c")])
    assert refused.value.code == "UPLOAD_INCOMPLETE"
    assert [problem.path for problem in refused.value.errors] == [("c", "4000", "incomplete")]
    assert await opened.objects.stat("up/d") is None
    await opened.upload("up/c", CONTENT[4000:], 4000)
    await opened.objects.complete([whole, PendingObject("up/c", parts)])
    assert await opened.content("up/c") == await opened.content("up/d") == CONTENT


async def test_completion_may_be_repeated_after_a_crash(opened: OpenStore) -> None:
    parts = [Part(0, 4000), Part(4000, 6000)]
    for offset, length in parts:
        await opened.upload("up/e", CONTENT[offset : offset + length], offset)
    # A crash within a completion leaves one part complete and no manifest.
    await opened.blobs.keep([("pending/up/e.0", "kept/up/e.0")])
    upload = PendingObject("up/e", parts)
    await opened.objects.complete([upload])
    await opened.objects.complete([upload])
    assert await opened.content("up/e") == CONTENT


async def test_upload_after_completion_changes_nothing(opened: OpenStore) -> None:
    url = await opened.objects.presign_put("up/g", len(CONTENT), 3600)
    await opened.client.put(url, content=CONTENT)
    upload = PendingObject("up/g", [Part(0, len(CONTENT))])
    await opened.objects.complete([upload])
    await opened.client.put(url, content=b"x" * len(CONTENT))
    assert await opened.content("up/g") == CONTENT
    await opened.objects.complete([upload])
    assert await opened.content("up/g") == CONTENT
    assert (
        await opened.objects.digest("up/g", asyncio.to_thread)
        == hashlib.sha256(CONTENT).hexdigest()
    )


async def test_wrong_length_is_never_completed(opened: OpenStore) -> None:
    url = await opened.objects.presign_put("up/h", len(CONTENT), 3600)
    await opened.client.put(url, content=CONTENT[:-1])
    with pytest.raises(ServiceError) as refused:
        await opened.objects.complete([PendingObject("up/h", [Part(0, len(CONTENT))])])
    assert refused.value.code == "UPLOAD_INCOMPLETE"


async def test_store_that_enforces_lengths_is_asked_once(
    opened: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site has thousands of files."""
    names_asked: list[str] = []
    lengths = opened.blobs.lengths

    async def noted(names: Sequence[str]) -> list[int | None]:
        names_asked.extend(names)
        return await lengths(names)

    for key in ("up/r", "up/s"):
        await opened.upload(key, CONTENT)
    with monkeypatch.context() as patched:
        patched.setattr(opened.blobs, "lengths", noted)
        await opened.objects.complete(
            [PendingObject(f"up/{k}", [Part(0, len(CONTENT))]) for k in "rs"]
        )
    again = ["kept/up/r", "kept/up/s"] if opened.blobs.takes_any_length else []
    assert names_asked == ["pending/up/r.0", "pending/up/s.0", *again]
    assert await opened.content("up/r") == CONTENT


@pytest.mark.parametrize("late", [CONTENT + b"x", CONTENT[:-1], b""])
async def test_wrong_length_during_completion_is_not_kept(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, late: bytes
) -> None:
    upload, other = (PendingObject(key, [Part(0, len(CONTENT))]) for key in ("up/p", "up/q"))
    async with open_bucket_store(s3, secrets.token_hex(4)) as opened:
        url = await opened.objects.presign_put("up/p", len(CONTENT), 3600)
        assert (await opened.client.put(url, content=CONTENT)).status_code == 200
        await opened.upload("up/q", CONTENT)
        keep = opened.blobs.keep

        async def keep_late(names: Sequence[tuple[str, str]]) -> None:
            # Lengths were checked already. S3 accepts data of other lengths.
            assert (await opened.client.put(url, content=late)).status_code == 200
            await keep(names)

        with monkeypatch.context() as patched:
            patched.setattr(opened.blobs, "keep", keep_late)
            with pytest.raises(ServiceError, match="2 of 2") as refused:
                await opened.objects.complete([upload, other])
        assert refused.value.code == "UPLOAD_INCOMPLETE"
        assert await opened.blobs.names("kept/up") == []
        for key in ("up/p", "up/q"):
            await opened.upload(key, CONTENT)
        await opened.objects.complete([upload, other])
        assert await opened.content("up/p") == await opened.content("up/q") == CONTENT


async def test_altered_url_is_rejected(opened: OpenStore) -> None:
    url = await opened.objects.presign_put("up/i", len(CONTENT), 3600)
    signature = url[url.lower().index("signature=") + 10 :]
    alterations = [
        ("up/i", "up/j"),
        ("length=10000", "length=10001"),
        ("Expires=3600", "Expires=7200"),
        (signature, signature[1:] + signature[:1]),
    ]
    tried = [url.replace(*pair) for pair in alterations if pair[0] in url]
    assert len(tried) == 3
    for altered in tried:
        # The S3 server may close the connection before the client reads the error.
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.NetworkError):
            answer = await opened.client.put(altered, content=CONTENT)
            assert answer.status_code == 403, altered
    assert await opened.blobs.names("pending/up") == []


async def test_expired_url_is_rejected(opened: OpenStore) -> None:
    url = await opened.objects.presign_put("up/j", len(CONTENT), 1)
    await asyncio.sleep(2.1)  # A signature is valid to the end of its last second.
    answer = await opened.client.put(url, content=CONTENT)
    assert answer.status_code == 403
    assert await opened.blobs.names("pending/up") == []


async def test_deletion_removes_only_its_object(opened: OpenStore) -> None:
    parts = [Part(0, 4000), Part(4000, 6000)]
    for key in ("up/k", "up/k2"):
        for offset, length in parts:
            await opened.upload(key, CONTENT[offset : offset + length], offset)
        await opened.objects.complete([PendingObject(key, parts)])
    await opened.upload("up/k3", CONTENT)
    await opened.objects.delete("up/k")
    await opened.objects.delete("up/k")
    assert await opened.objects.stat("up/k") is None
    with pytest.raises(FileNotFoundError):
        await opened.content("up/k")
    assert await opened.content("up/k2") == CONTENT
    await opened.objects.delete("up/k3")
    assert await opened.blobs.names("pending/up") == []
    await opened.store("other/a", CONTENT)
    await opened.objects.delete_prefix("up")
    assert await opened.blobs.names("kept/up") == []
    assert await opened.content("other/a") == CONTENT


async def test_sweep_removes_only_parts_of_no_incomplete_upload(opened: OpenStore) -> None:
    await opened.store("up/l", CONTENT)
    for key in ("up/m", "other/m"):
        await opened.upload(key, CONTENT)
    asked: list[str] = []

    async def find_incomplete(upload_ids: Collection[str]) -> Collection[str]:
        asked.extend(upload_ids)
        return {"up"}

    assert await opened.objects.sweep(find_incomplete) == 1
    assert sorted(asked) == ["other", "up"]
    assert await opened.blobs.names("pending/other") == []
    assert await opened.blobs.names("pending/up") == ["pending/up/m.0"]
    assert await opened.content("up/l") == CONTENT


async def test_put_to_a_deleted_upload_stores_nothing(opened: OpenStore) -> None:
    await opened.store("up/s", CONTENT)
    await opened.upload("up/t", CONTENT)
    await opened.store("other/s", CONTENT)
    for _ in range(2):
        await opened.objects.delete_upload("up")
    for key in ("up/s", "up/t", "up/u"):
        answer = await opened.upload(key, CONTENT)
        if opened.blobs.takes_any_length:
            assert answer.status_code == 200
        else:
            assert (answer.status_code, answer.json()["code"]) == (404, "UPLOAD_NOT_FOUND")

    async def find_incomplete(_: Collection[str]) -> Collection[str]:
        return ()

    await opened.objects.sweep(find_incomplete)
    for folder in ("pending/up", "kept/up", "pending"):
        assert await opened.blobs.names(folder) == []
    assert await opened.content("other/s") == CONTENT


@pytest.mark.parametrize("pieces", [[], [b"a,b\r\n"], [b"x" * (3 << 20)] * 5])
async def test_object_of_the_service_appears_whole(opened: OpenStore, pieces: list[bytes]) -> None:
    writer = opened.objects.writer("exports/a/csv")
    for piece in pieces:
        await writer.write(piece)
    assert await opened.objects.stat("exports/a/csv") is None
    await writer.commit()
    whole = b"".join(pieces)
    assert await opened.objects.stat("exports/a/csv") == len(whole)
    assert await opened.content("exports/a/csv") == whole
    assert (opened.objects.counts.puts, opened.objects.counts.put_bytes) == (1, len(whole))
    given_up = opened.objects.writer("exports/b/csv")
    await given_up.write(b"x" * (5 << 20))
    for folder in ("exports/a", "exports/b"):
        await opened.objects.delete_prefix(folder)
    assert await opened.blobs.names("kept/exports") == []


@pytest.mark.parametrize(
    "key", ["", "a", "/a/b", "a//b", "a/../b", "a/b.0", "A/b", "a/b/", "a/" + "b" * 65, "a\n/b"]
)
async def test_invalid_key_never_reaches_a_disk(opened: OpenStore, key: str) -> None:
    with pytest.raises(ValueError, match="not an object key"):
        await opened.objects.presign_put(key, 1, 60)
    with pytest.raises(ValueError, match="not an object key"):
        await opened.objects.stat(key)
    with pytest.raises(ValueError, match="not an object key"):
        await opened.objects.delete(key)


def test_file_is_split_into_64_mib_parts_from_100_mib() -> None:
    assert plan_parts(MULTIPART_FROM_BYTES - 1, True) == [Part(0, MULTIPART_FROM_BYTES - 1)]
    assert plan_parts(MULTIPART_FROM_BYTES, False) == [Part(0, MULTIPART_FROM_BYTES)]
    assert plan_parts(MULTIPART_FROM_BYTES, True) == [
        Part(0, PART_BYTES),
        Part(PART_BYTES, MULTIPART_FROM_BYTES - PART_BYTES),
    ]
    assert plan_parts(2 * PART_BYTES, True) == [Part(0, PART_BYTES), Part(PART_BYTES, PART_BYTES)]
    assert plan_parts(0, True) == [Part(0, 0)]


def test_object_key_does_not_reveal_the_path() -> None:
    tricks = ["../../etc/passwd", "a", "A", "a/", "ä" * 200, "\x00"]
    keys = [file_key("0f", path) for path in tricks]
    assert len(set(keys)) == len(tricks)
    assert all(len(key) == 43 and key.isascii() for key in keys)


@pytest.mark.parametrize(
    ("path", "is_good"),
    [
        *((good, True) for good in ("a", "index.html", "a/b c/ü.js", ".well-known/x", "a" * 512)),
        *((bad, False) for bad in ("", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/..")),
        *((bad, False) for bad in ("a\\b", "a\0", "a\n", "\x7f", "ü" * 257, "\ud800")),
        (".objects/a", False),
    ],
)
def test_unrequestable_path_is_rejected(path: str, is_good: bool) -> None:
    assert is_file_path(path) is is_good


async def test_unreachable_bucket_is_an_outage_that_ends(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running_s3(tmp_path / "buckets"))
        async with open_bucket_store(server, "") as opened:
            await opened.store("up/n", CONTENT)
            server.process.kill()
            server.process.wait()
            for act in (opened.objects.stat("up/n"), put_whole(opened.objects, "up/o", b"x")):
                with pytest.raises(ServiceError) as refused:
                    await act
                assert refused.value.code == "CONTROL_PLANE_UNAVAILABLE"
                assert refused.value.retry_after_s
