from __future__ import annotations

import hashlib
import json
import tarfile
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from tests.support.full_service import ARENA_MODES, Developer
from tests.support.game_back_end import GameBackEnd
from tests.support.game_back_end import back_end as back_end
from tests.support.upload_files import MANIFEST, bomb, entry, packed, put, tar

pytestmark = pytest.mark.anyio


async def test_build_upload_from_preparation_to_list(back_end: GameBackEnd) -> None:
    content = tar({**MANIFEST, "bin/run": b"\x7fELF" * 500})
    created = await back_end.prepare(content)
    build, request = created["build"], created["image_presigned_request"]
    fields = {"content_length": len(content), "tags": {}, "complete": False}
    assert build == {
        "id": build["id"],
        "name": "server",
        "created_at": build["created_at"],
        **fields,
    }
    part = (request["byte_offset"], request["content_length"], request["path"])
    assert part == (0, len(content), "server.tar")
    assert "image_presigned_requests" not in created
    assert (await back_end.good("list_builds"))["builds"] == [build]
    incomplete = await back_end.call("complete_build", build_id=build["id"])
    assert incomplete.code == "UPLOAD_INCOMPLETE"
    assert (await put(request, content)).status_code == 200
    assert await back_end.good("complete_build", build_id=build["id"]) == {}
    completed = {**build, "complete": True}
    assert (await back_end.good("get_build", build_id=build["id"]))["build"] == completed
    assert (await back_end.good("list_builds"))["builds"] == [completed]
    (summary,) = (await back_end.developer.good("list_game_builds", game_id=back_end.game_id))[
        "builds"
    ]
    expected = {"build_id": build["id"], "upload_id": summary["upload_id"], **fields}
    expected |= {"display_name": "server", "create_ts": build["created_at"], "complete": True}
    assert summary == expected


async def test_second_completion_is_refused_a_replay_is_not(back_end: GameBackEnd) -> None:
    content, key = tar(), str(uuid4())
    created = await back_end.prepare(content)
    await put(created["image_presigned_request"], content)
    complete = partial(back_end.call, "complete_build", build_id=created["build"]["id"])
    codes = [(await complete(key=one)).code for one in (key, key, None)]
    assert codes == ["OK", "OK", "UPLOAD_ALREADY_COMPLETE"]
    late = await put(created["image_presigned_request"], content)
    assert late.json()["code"] == "UPLOAD_ALREADY_COMPLETE"


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
async def test_game_build_is_completed_by_its_upload(owner: Developer, compression: str) -> None:
    game_id, content = await owner.game(), packed(tar(), compression)
    image = {"path": "server.tar.gz", "content_length": len(content)}
    image |= {"content_type": "application/gzip", "sha256": hashlib.sha256(content).hexdigest()}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1.0", "image_file": image}
    response = await owner.good("create_game_build", **fields, compression=compression)
    await put(response["image_presigned_request"], content)
    await owner.good("complete_upload", upload_id=response["upload_id"])
    (build,) = (await owner.good("list_game_builds", game_id=game_id))["builds"]
    assert (build["complete"], build["build_id"]) == (True, response["build_id"])
    repeat_code = await owner.code("complete_upload", upload_id=response["upload_id"])
    assert repeat_code == "UPLOAD_ALREADY_COMPLETE"


async def test_wrong_digest_is_refused_and_leaves_nothing(back_end: GameBackEnd) -> None:
    refusal = await back_end.refused(
        tar(), image={"sha256": hashlib.sha256(b"another").hexdigest()}
    )
    assert refusal.code == "VALIDATION_FAILED"
    assert refusal.errors == (("image_file", "sha256", "invalid"),)
    (build,) = (await back_end.good("list_builds"))["builds"]
    assert not build["complete"]
    repeat = await back_end.call("complete_build", build_id=build["id"])
    assert repeat.code == "UPLOAD_INCOMPLETE"


async def test_invalid_or_escaping_archive_is_refused(back_end: GameBackEnd) -> None:
    for content, word in (
        (tar({"../out": b"x"}), "not-allowed"),
        (tar({"/etc/x": b"x"}), "not-allowed"),
        (tar(entries=[entry("a", tarfile.SYMTYPE, "../../etc")]), "not-allowed"),
        (tar(entries=[entry("null", tarfile.CHRTYPE)]), "not-allowed"),
        (b"no tar at all" * 100, "invalid"),
        (tar({"a": b"x" * 5000})[:3000], "invalid"),
    ):
        refusal = await back_end.refused(content)
        assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("image_file", word),))


@pytest.mark.full
@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
async def test_archive_over_the_expansion_limit_is_refused(
    back_end: GameBackEnd, compression: str
) -> None:
    refusal = await back_end.refused(bomb(compression), compression=compression)
    assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (("image_file", "too-high"),))
    small = bomb(compression, 128 << 20)
    assert len(small) * 240 < 128 << 20
    await back_end.build(small, compression=compression)


async def test_preparation_reports_every_problem(back_end: GameBackEnd) -> None:
    image = {"path": "../server.tar", "content_length": 10, "content_type": "none"}
    fields = {"name": " x", "kind": "oci_bundle", "compression": "rar", "image_tag": "a\x00"}
    refusal = await back_end.call("prepare_build", image_file=image, **fields)
    assert refusal.code == "VALIDATION_FAILED"
    assert set(refusal.errors) == {
        ("name", "invalid"),
        ("kind", "not-allowed"),
        ("compression", "not-allowed"),
        ("image_tag", "invalid"),
        ("image_file", "path", "invalid"),
        ("image_file", "content_type", "invalid"),
    }
    assert await back_end.listed() == []


async def test_build_size_limit_is_8_gib(back_end: GameBackEnd) -> None:
    image = {"path": "server.tar", "content_length": (8 << 30) + 1}
    refusal = await back_end.call("prepare_build", name="x", image_file=image)
    assert refusal.code == "UPLOAD_TOO_LARGE"
    image["content_length"] = 0
    assert (await back_end.call("prepare_build", name="x", image_file=image)).code == "BODY_INVALID"
    image["content_length"] = 8 << 30
    response = await back_end.good(
        "prepare_build", name="x", image_file=image, multipart_upload=True
    )
    assert len(response["image_presigned_requests"]) == 128


async def test_multipart_upload_needs_every_part(back_end: GameBackEnd) -> None:
    content = tar({**MANIFEST, "level": bytes(120 << 20)})
    created = await back_end.prepare(content, multipart_upload=True)
    parts = created["image_presigned_requests"]
    assert "image_presigned_request" not in created
    assert [part["byte_offset"] for part in parts] == [0, 64 << 20]
    assert sum(part["content_length"] for part in parts) == len(content)
    build_id = created["build"]["id"]
    assert (await put(parts[1], content)).status_code == 200
    assert (await back_end.call("complete_build", build_id=build_id)).code == "UPLOAD_INCOMPLETE"
    assert (await put(parts[0], content)).status_code == 200
    await back_end.good("complete_build", build_id=build_id)
    small = await back_end.prepare(tar(), multipart_upload=True)
    assert "image_presigned_request" in small


async def test_lists_are_newest_first_and_filtered_by_tags(back_end: GameBackEnd) -> None:
    builds = [(await back_end.prepare(tar()))["build"]["id"] for _ in range(3)]
    assert await back_end.listed() == builds[::-1]
    await back_end.good(
        "patch_build_tags", build_id=builds[0], tags={"branch": "main", "os": "linux"}
    )
    await back_end.good("patch_build_tags", build_id=builds[2], tags={"branch": "main"})
    assert await back_end.listed(tags_json='{"branch": "main"}') == [builds[2], builds[0]]
    both_tags = json.dumps({"branch": "main", "os": "linux"})
    assert await back_end.listed(tags_json=both_tags) == [builds[0]]
    assert await back_end.listed(tags_json="{}") == builds[::-1]
    for wrong in ("[]", "{", '{"a": 1}', '{"a": "\\u0000"}'):
        assert (await back_end.call("list_builds", tags_json=wrong)).code == "QUERY_INVALID"


async def test_tags_are_set_removed_and_exclusive(back_end: GameBackEnd) -> None:
    first, second = [(await back_end.prepare(tar()))["build"]["id"] for _ in range(2)]

    async def tags(build_id: str) -> Any:
        return (await back_end.good("get_build", build_id=build_id))["build"]["tags"]

    expected = {"current": "true", "branch": "main"}
    await back_end.good(
        "patch_build_tags", build_id=first, tags=expected, exclusive_tags=["current"]
    )
    await back_end.good(
        "patch_build_tags", build_id=second, tags=expected, exclusive_tags=["current"]
    )
    assert await tags(first) == {"branch": "main"}
    assert await tags(second) == expected
    await back_end.good("patch_build_tags", build_id=second, tags={"branch": None, "os": "linux"})
    assert await tags(second) == {"current": "true", "os": "linux"}
    for wrong, path in (
        ({"": "x"}, ("tags", "", "too-short")),
        ({"a": 1}, ("tags", "a", "wrong-type")),
        ({"a": ""}, ("tags", "a", "too-short")),
        ({"a": "x" * 1025}, ("tags", "a", "too-long")),
        ({f"t{i}": "x" for i in range(31)}, ("tags", "too-many")),
    ):
        refusal = await back_end.call("patch_build_tags", build_id=second, tags=wrong)
        assert (refusal.code, refusal.errors) == ("VALIDATION_FAILED", (path,))
    assert await tags(second) == {"current": "true", "os": "linux"}


async def test_build_of_a_version_is_kept(back_end: GameBackEnd) -> None:
    developer, build_id = back_end.developer, await back_end.build()
    mode = {**ARENA_MODES["arena"]}
    mode["docker"] = {**mode["docker"], "image_id": build_id}
    await developer.version(back_end.game_id, {"matchmaker": {"game_modes": {"arena": mode}}})
    fields = {"game_id": back_end.game_id, "build_id": build_id}
    assert await developer.code("delete_build", **fields) == "IN_USE"
    assert await back_end.listed() == [build_id]
    other = await back_end.build()
    fields["build_id"] = other
    key = str(uuid4())
    await developer.good("delete_build", key, **fields)
    await developer.good("delete_build", key, **fields)
    assert await developer.code("delete_build", **fields) == "BUILD_NOT_FOUND"
    assert await back_end.listed() == [build_id]
    assert (await back_end.call("complete_build", build_id=other)).code == "BUILD_NOT_FOUND"


async def test_build_of_another_game_is_not_found(back_end: GameBackEnd) -> None:
    build_id = (await back_end.prepare(tar()))["build"]["id"]
    game_id = await back_end.developer.game()
    elsewhere = GameBackEnd(
        back_end.developer, game_id, await back_end.developer.service_token(game_id)
    )
    assert (await elsewhere.call("get_build", build_id=build_id)).code == "BUILD_NOT_FOUND"
