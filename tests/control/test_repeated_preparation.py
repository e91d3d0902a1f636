"""Repeated preparation of an upload under its key. The tests move the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from sqlalchemy import select

from pyservice.storage.tables import idempotent_answers
from tests.support.command_line import output
from tests.support.fault_shim import compiled_library
from tests.support.full_service import Developer, running
from tests.support.killed_service import KilledService
from tests.support.namespace_scenario import Records
from tests.support.upload_files import MANIFEST, png, put, tar, without_addresses

pytestmark = [pytest.mark.anyio, pytest.mark.full]

HOUR_S: Final = 3600.0
SITE_KEPT_BYTES: Final = 256


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledService]:
    folder = tmp_path_factory.mktemp("moved")
    with running(KilledService(folder, compiled_library(), None)) as full_service:
        yield full_service


@pytest.fixture(autouse=True)
def reset_clock(full_service: KilledService) -> None:
    full_service.shim.shift_wall_clock(0)


def pass_time(developer: Developer, seconds: float) -> None:
    assert isinstance(developer.full_service, KilledService)
    developer.full_service.shim.shift_wall_clock(seconds)


async def kept_bytes(records: Records, upload_id: str) -> int:
    async with records.database.read() as tx:
        rows = await tx.all(select(idempotent_answers.c.answer))
    (stored_response,) = [row.answer for row in rows if upload_id.encode() in row.answer]
    return len(stored_response)


async def test_site_of_10000_files_is_stored_small_and_replayed(
    developer: Developer, records: Records
) -> None:
    game_id, key = await developer.game(), str(uuid4())
    files = [{"path": f"f/{number:080}", "content_length": 1} for number in range(10_000)]
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "x", "files": files}
    first = await developer.good("create_site", key, **fields)
    assert await kept_bytes(records, first["upload_id"]) <= SITE_KEPT_BYTES
    repeat = await developer.good("create_site", key, **fields)
    assert without_addresses(repeat) == without_addresses(first)
    assert len({one["url"] for one in repeat["presigned_requests"]}) == 10_000
    assert (await put(repeat["presigned_requests"][-1], b"x" * 10_000)).status_code == 200


IMAGE: Final = {"path": "a.tar", "content_length": len(tar())}
PICTURE: Final = ({"path": "a.png", "content_length": len(png())}, png())
PREPARATIONS: Final[dict[str, tuple[dict[str, Any], bytes]]] = {
    "create_site": ({"display_name": "x", "files": [{"path": "a", "content_length": 3}]}, b"abc"),
    "create_game_build": ({"display_name": "x", "image_file": IMAGE}, tar()),
    **{f"prepare_{kind}": PICTURE for kind in ("avatar", "banner", "logo")},
}


def requests_of(answer: Any) -> list[Any]:
    for name in ("presigned_requests", "image_presigned_requests"):
        if name in answer:
            return list(answer[name])
    return [answer.get("presigned_request") or answer["image_presigned_request"]]


@pytest.mark.parametrize("slug", PREPARATIONS)
async def test_replay_has_valid_urls_after_expiry(developer: Developer, slug: str) -> None:
    fields, content = PREPARATIONS[slug]
    fields, key = {"game_id": await developer.game(), **fields}, str(uuid4())
    first = await developer.good(slug, key, **fields)
    pass_time(developer, HOUR_S + 1)
    (old,), again = requests_of(first), await developer.good(slug, key, **fields)
    assert without_addresses(again) == without_addresses(first)
    late = await put(old, content)
    assert (late.status_code, late.json()["code"]) == (403, "UPLOAD_URL_INVALID")
    assert (
        await developer.code("complete_upload", upload_id=first["upload_id"]) == "UPLOAD_INCOMPLETE"
    )
    assert (await put(requests_of(again)[0], content)).status_code == 200
    await developer.good("complete_upload", upload_id=first["upload_id"])


async def test_replay_of_a_namespace_upload_has_valid_urls(developer: Developer) -> None:
    """The response has no upload id, so the id is stored beside it."""
    game_id, key = await developer.game(), str(uuid4())
    token = await developer.service_token(game_id)
    back_end = Developer(developer.full_service, developer.client, token)
    target = {"game_id": game_id, "environment_id": "prod"}
    fields: dict[str, Any] = {**target, "name": "x", "image_file": IMAGE}
    first = await back_end.good("prepare_build", key, **fields)
    pass_time(developer, 2 * HOUR_S)
    repeat = await back_end.good("prepare_build", key, **fields)
    assert without_addresses(repeat) == without_addresses(first)
    assert (await put(requests_of(repeat)[0], tar())).status_code == 200
    await back_end.good("complete_build", **target, build_id=first["build"]["id"])
    # The upload is complete, so the replayed URLs accept no content.
    last = await back_end.good("prepare_build", key, **fields)
    assert without_addresses(last) == without_addresses(first)
    refusal = await put(requests_of(last)[0], tar())
    assert (refusal.status_code, refusal.json()["code"]) == (409, "UPLOAD_ALREADY_COMPLETE")


async def test_uploaded_parts_stay_after_a_replay(developer: Developer) -> None:
    content = tar({**MANIFEST, "level": bytes(101 << 20)})
    image = {"path": "a.tar", "content_length": len(content)}
    fields: dict[str, Any] = {"game_id": await developer.game(), "display_name": "x"}
    fields |= {"image_file": image, "multipart_upload": True}
    key = str(uuid4())
    first = await developer.good("create_game_build", key, **fields)
    parts = requests_of(first)
    assert (await put(parts[0], content)).status_code == 200
    pass_time(developer, 6 * HOUR_S + 1)
    assert (await put(parts[1], content)).status_code == 403
    repeat = await developer.good("create_game_build", key, **fields)
    assert without_addresses(repeat) == without_addresses(first)
    assert (await put(requests_of(repeat)[1], content)).status_code == 200
    await developer.good("complete_upload", upload_id=first["upload_id"])


async def test_deleted_upload_is_not_replayed(developer: Developer) -> None:
    fields, content = PREPARATIONS["create_game_build"]
    game_id, key = await developer.game(), str(uuid4())
    fields = {"game_id": game_id, **fields}
    first = await developer.good("create_game_build", key, **fields)
    await developer.good("delete_build", game_id=game_id, build_id=first["build_id"])
    assert await developer.code("create_game_build", key, **fields) == "UPLOAD_NOT_FOUND"
    assert (await put(requests_of(first)[0], content)).status_code == 404
    assert (
        await developer.code("complete_upload", upload_id=first["upload_id"]) == "UPLOAD_NOT_FOUND"
    )
    assert (await developer.good("list_game_builds", game_id=game_id))["builds"] == []


async def test_former_member_gets_no_replayed_urls_or_tokens(developer: Developer) -> None:
    data_dir = developer.full_service.data_dir
    person = await output(data_dir, "identity", "create", "--display-name", "Person")
    token = await output(data_dir, "token", "create", "--identity", person)
    member = ("--group", developer.full_service.group_id, "--identity", person)
    await output(data_dir, "group", "add-member", *member)
    former_member, game_id = (
        Developer(developer.full_service, developer.client, token),
        await developer.arena(),
    )
    requests: dict[str, dict[str, Any]] = {
        slug: {"game_id": game_id, **fields} for slug, (fields, _) in PREPARATIONS.items()
    }
    target = {"game_id": game_id, "environment_id": "prod"}
    requests["prepare_build"] = {**target, "name": "x", "image_file": IMAGE}
    for slug in ("create_public_token", "create_development_token"):
        requests[slug] = {"game_id": game_id, "namespace_id": "prod"}
    key = str(uuid4())
    keys = {slug: f"{slug}-{key}" for slug in requests}
    for slug, fields in requests.items():
        await former_member.good(slug, keys[slug], **fields)
    await output(data_dir, "group", "remove-member", *member)
    for slug, fields in requests.items():
        assert (await former_member.call(slug, keys[slug], **fields)).code == "GAME_NOT_FOUND", slug
    await output(data_dir, "group", "add-member", *member)
    for slug, fields in requests.items():
        await former_member.good(slug, keys[slug], **fields)
