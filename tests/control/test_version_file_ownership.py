"""Builds and sites of a version must belong to the version's game."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control.files import put_all, tar
from tests.control.namespace_scenario import Records
from tests.control.test_sites import FILES, of
from tests.support.full_service import ARENA_MODES, Developer

pytestmark = pytest.mark.anyio

PORTS = ARENA_MODES["arena"]["docker"]


async def complete_site(developer: Developer, game_id: str) -> str:
    created = await developer.good(
        "create_site", game_id=game_id, display_name="1", files=of(FILES)
    )
    await put_all(created["presigned_requests"], FILES)
    await developer.good("complete_upload", upload_id=created["upload_id"])
    return str(created["site_id"])


async def complete_build(developer: Developer, game_id: str) -> str:
    image = {"path": "a.tar", "content_length": len(tar())}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1", "image_file": image}
    created = await developer.good("create_game_build", **fields)
    await put_all([created["image_presigned_request"]], {"a.tar": tar()})
    await developer.good("complete_upload", upload_id=created["upload_id"])
    return str(created["build_id"])


def naming(build_id: str, site_id: str) -> dict[str, Any]:
    """Returns a configuration with this build id and this site id at each path that accepts such an id."""
    mode = {"max_players": 4, "docker": {**PORTS, "image_id": build_id}}
    return {
        "cdn": {"site_id": site_id},
        "matchmaker": {"game_modes": {"arena": mode}, "docker": {"image_id": build_id}},
    }


NOT_FOUND = {
    ("config", "cdn", "site_id", "not-found"),
    ("config", "matchmaker", "docker", "image_id", "not-found"),
    ("config", "matchmaker", "game_modes", "arena", "docker", "image_id", "not-found"),
}


@pytest.fixture(params=["one's own other game", "another developer's game"])
async def complete_files(
    request: pytest.FixtureRequest, developer: Developer, records: Records
) -> Any:
    if request.param == "one's own other game":
        return developer, await developer.game()
    identity_id, (group_id,) = await records.identity("Theirs")
    token, _ = await records.cloud_token(identity_id)
    other_caller = Developer(developer.full_service, developer.door, token)
    return other_caller, await other_caller.game(developer_group_id=group_id)


async def test_files_of_another_game_are_not_found(
    developer: Developer, complete_files: tuple[Developer, str], records: Records
) -> None:
    other, other_game_id = complete_files
    game_id = await developer.game()
    config = naming(
        await complete_build(other, other_game_id), await complete_site(other, other_game_id)
    )
    before = await records.tables()

    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1.0.0", "config": config}
    response = await developer.good("validate_version", **fields)
    assert {tuple(one["path"]) for one in response["errors"]} == NOT_FOUND
    refused = await developer.call("create_version", **fields)
    assert (refused.code, set(refused.errors)) == ("VALIDATION_FAILED", NOT_FOUND)

    assert await records.tables() == before
    await other.good("create_version", **{**fields, "game_id": other_game_id})
