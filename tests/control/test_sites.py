"""Uploads of sites: preparation, limits and paths of their files."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.control.site_files import FILES, file_fields
from tests.support.full_service import Developer, eventually
from tests.support.upload_files import put, put_all, without_addresses
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_site_upload_from_preparation_to_list(developer: Developer) -> None:
    game_id = await developer.game()
    fields: dict[str, Any] = {
        "game_id": game_id,
        "display_name": "1.0",
        "files": file_fields(FILES),
    }
    response = await developer.good("create_site", **fields)
    assert [one["path"] for one in response["presigned_requests"]] == list(FILES)
    assert all(one["byte_offset"] == 0 for one in response["presigned_requests"])
    (site,) = (await developer.good("list_sites", game_id=game_id))["sites"]
    assert site == {
        "site_id": response["site_id"],
        "upload_id": response["upload_id"],
        "display_name": "1.0",
        "create_ts": site["create_ts"],
        "content_length": sum(map(len, FILES.values())),
        "complete": False,
    }
    *most, last = response["presigned_requests"]
    await put_all(most, FILES)
    upload_id = response["upload_id"]
    assert await developer.code("complete_upload", upload_id=upload_id) == "UPLOAD_INCOMPLETE"
    config = {"cdn": {"site_id": response["site_id"]}}
    version: dict[str, Any] = {"game_id": game_id, "display_name": "1", "config": config}
    refusal = await developer.call("create_version", **version)
    assert refusal.errors == (("config", "cdn", "site_id", "incomplete"),)
    await put_all([last], FILES)
    await developer.good("complete_upload", upload_id=upload_id)
    (site,) = (await developer.good("list_sites", game_id=game_id))["sites"]
    assert site["complete"]
    await developer.good("create_version", **version)
    code = await developer.code("complete_upload", upload_id=upload_id)
    assert code == "UPLOAD_ALREADY_COMPLETE"


def hashed_fields(contents: dict[str, bytes]) -> list[dict[str, Any]]:
    digests = {path: sha256(content).hexdigest() for path, content in contents.items()}
    return [{**fields, "sha256": digests[fields["path"]]} for fields in file_fields(contents)]


async def hashed_site(
    developer: Developer, game_id: str, contents: dict[str, bytes]
) -> tuple[str, list[str]]:
    """Uploads a site, and returns its id and the paths of the files that were sent."""
    response = await developer.good(
        "create_site", game_id=game_id, display_name="1", files=hashed_fields(contents)
    )
    requests = response["presigned_requests"]
    await put_all(requests, contents)
    await developer.good("complete_upload", upload_id=response["upload_id"])
    return str(response["site_id"]), [request["path"] for request in requests]


async def test_only_changed_files_of_a_site_are_sent(developer: Developer) -> None:
    game_id = await developer.game()
    first = {f"page-{number}.html": b"page %d" % number for number in range(50)}
    first_id, sent = await hashed_site(developer, game_id, first)
    assert sorted(sent) == sorted(first)
    second = {**first, "page-7.html": b"changed", "moved.html": first["page-1.html"]}
    second_id, sent = await hashed_site(developer, game_id, second)
    assert sent == ["page-7.html"]
    _, sent = await hashed_site(developer, await developer.game(), first)
    assert sorted(sent) == sorted(first), "another game has no part in it"
    # The files of a site do not depend on the site that they were copied from.
    await developer.good("delete_site", game_id=game_id, site_id=first_id)
    config = {"cdn": {"site_id": second_id}}
    version_id = await developer.version(game_id, config)
    target = {"game_id": game_id, "namespace_id": "prod"}
    await developer.good("set_version", **target, version_id=version_id)
    namespace = (await developer.good("get_namespace", **target))["namespace"]

    async def served() -> bool:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            answers = {path: await client.get(f"{namespace['site_url']}{path}") for path in second}
        return {path: answer.content for path, answer in answers.items()} == second

    await eventually(served)


async def test_repeated_preparation_returns_the_same_missing_files(developer: Developer) -> None:
    game_id = await developer.game()
    await hashed_site(developer, game_id, FILES)
    contents = {**FILES, "new.txt": b"new"}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "2"}
    fields["files"] = hashed_fields(contents)
    key = str(uuid4())
    first, again = [await developer.good("create_site", key, **fields) for _ in range(2)]
    assert first["upload_id"] == again["upload_id"]
    assert [one["path"] for one in again["presigned_requests"]] == ["new.txt"]
    await put_all(again["presigned_requests"], contents)
    await developer.good("complete_upload", upload_id=first["upload_id"])
    unchanged = await developer.good(
        "create_site", game_id=game_id, display_name="3", files=hashed_fields(FILES)
    )
    assert unchanged["presigned_requests"] == []
    await developer.good("complete_upload", upload_id=unchanged["upload_id"])


async def test_wrong_digest_of_a_file_is_refused(developer: Developer) -> None:
    game_id = await developer.game()
    files = hashed_fields(FILES)
    files[0]["sha256"] = sha256(b"other").hexdigest()
    response = await developer.good("create_site", game_id=game_id, display_name="1", files=files)
    await put_all(response["presigned_requests"], FILES)
    refusal = await developer.call("complete_upload", upload_id=response["upload_id"])
    assert (refusal.code, refusal.errors) == (
        "VALIDATION_FAILED",
        (("files", "sha256", "invalid"),),
    )


async def test_path_problems_are_all_reported(developer: Developer) -> None:
    game_id = await developer.game()
    paths = ["ok.txt", "", "/a", "a/../b", "./a", "a//b", "a\\b", "a\x00", "x" * 513, "ok.txt"]
    files: list[dict[str, Any]] = [{"path": path, "content_length": 1} for path in paths]
    files.append({"path": "typed", "content_length": 1, "content_type": "text/html\r\nx: y"})
    refusal = await developer.call("create_site", game_id=game_id, display_name=" x", files=files)
    assert refusal.code == "VALIDATION_FAILED"
    assert set(refusal.errors) == {
        ("display_name", "invalid"),
        ("files", "1", "path", "too-short"),
        *((("files", str(index), "path", "invalid")) for index in range(2, 8)),
        ("files", "8", "path", "too-long"),
        ("files", "9", "path", "not-unique"),
        ("files", "10", "content_type", "invalid"),
    }
    assert (await developer.good("list_sites", game_id=game_id))["sites"] == []
    longest = [{"path": "ä" * 256, "content_length": 1}]
    await developer.good("create_site", game_id=game_id, display_name="x", files=longest)


async def test_site_has_at_most_1_gib(developer: Developer) -> None:
    game_id = await developer.game()
    target = {"game_id": game_id, "display_name": "x"}
    large: list[dict[str, Any]] = [{"path": f"{i}", "content_length": 1 << 29} for i in range(2)]
    await developer.good("create_site", **target, files=large)
    large[0]["content_length"] += 1
    assert await developer.code("create_site", **target, files=large) == "UPLOAD_TOO_LARGE"
    none = await developer.call("create_site", **target, files=[])
    assert none.code == "BODY_INVALID"


async def test_site_has_at_most_10000_files(owner: Developer) -> None:
    target = {"game_id": await owner.game(), "display_name": "x"}
    files: list[dict[str, Any]] = [{"path": f"f/{i}", "content_length": 1} for i in range(10_000)]
    response = await owner.good("create_site", **target, files=files)
    assert len({one["url"] for one in response["presigned_requests"]}) == 10_000
    files.append({"path": "one more", "content_length": 1})
    refusal = await owner.call("create_site", **target, files=files)
    assert (refusal.code, refusal.errors) == ("BODY_INVALID", (("files", "too-many"),))


async def test_wrong_length_or_altered_url_is_refused(developer: Developer) -> None:
    game_id = await developer.game()
    files = file_fields({"a.txt": b"abc"})
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "x", "files": files}
    response = await developer.good("create_site", **fields)
    (request,) = response["presigned_requests"]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        for content in (b"ab", b"abcd"):
            wrong = await client.put(request["url"], content=content)
            assert (wrong.status_code, wrong.json()["code"]) == (400, "UPLOAD_LENGTH_MISMATCH")
        longer = await client.put(request["url"].replace("length=3", "length=4"), content=b"abcd")
        assert (longer.status_code, longer.json()["code"]) == (403, "UPLOAD_URL_INVALID")
        read = await client.get(request["url"])
        assert read.status_code == 403
    code = await developer.code("complete_upload", upload_id=response["upload_id"])
    assert code == "UPLOAD_INCOMPLETE"
    assert (await put(request, b"abc")).status_code == 200
    await developer.good("complete_upload", upload_id=response["upload_id"])


async def test_repeated_preparation_is_the_same_site(developer: Developer) -> None:
    game_id = await developer.game()
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "x", "files": file_fields(FILES)}
    first = await developer.good("create_site", game_id, **fields)
    repeat = await developer.good("create_site", game_id, **fields)
    assert without_addresses(repeat) == without_addresses(first)
    assert len((await developer.good("list_sites", game_id=game_id))["sites"]) == 1
    other = await developer.code("create_site", game_id, **{**fields, "display_name": "y"})
    assert other == "IDEMPOTENCY_KEY_REUSED"
