"""Versions. `test_configuration_validation` tests the rules of their configurations."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.control.configurations import EVERYTHING, everything
from tests.control.new_developers import new_developer
from tests.control.response_shapes import ID, TEXT, TIME, shape
from tests.control.site_files import complete_site
from tests.support.full_service import ARENA_MODES, Developer
from tests.support.namespace_scenario import Records
from tests.support.upload_files import put_all, tar

pytestmark = pytest.mark.anyio


def available_configuration() -> dict[str, Any]:
    """Returns `EVERYTHING` without missing files and without settings that this service does not allow."""
    document = everything()
    _drop(document, ("image_id", "site_id", "captcha", "eu-1", "us-1"))
    return document


def _drop(value: Any, names: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for name in names:
            value.pop(name, None)
        for one in value.values():
            _drop(one, names)
    elif isinstance(value, list):
        for one in value:
            _drop(one, names)


async def test_version_is_returned_exactly(developer: Developer) -> None:
    game_id, config = await developer.game(), available_configuration()
    assert config != EVERYTHING
    response = await developer.good(
        "create_version", game_id=game_id, display_name="1.0.0", config=config
    )
    assert shape(response) == {"version_id": ID}
    answer = await developer.good("get_version", game_id=game_id, version_id=response["version_id"])
    version = answer.pop("version")
    assert answer == {}
    assert version.pop("config") == config
    assert shape(version) == {"create_ts": TIME, "display_name": TEXT, "version_id": ID}
    assert version["display_name"] == "1.0.0"
    assert version["version_id"] == response["version_id"]


async def test_versions_are_listed_newest_first(developer: Developer) -> None:
    game_id = await developer.game()
    names = ["0.0.1", "1.0.0", "1.0.0"]
    created = [await developer.version(game_id, {}, name=name) for name in names]
    answer = await developer.good("list_versions", game_id=game_id)
    summary = {"version_id": ID, "create_ts": TIME, "display_name": TEXT}
    assert shape(answer) == {"versions": [summary]}
    assert [one["version_id"] for one in answer["versions"]][:3] == created[::-1]
    listed = [one["display_name"] for one in answer["versions"]]
    assert listed == [*names[::-1], "0.0.1"], "versions may share a name"


BAD_MODES: dict[str, Any] = {
    "a b": {},
    "duel": {"max_players": 257, "docker": {"image_id": str(uuid4())}},
}
BAD_CONFIG: dict[str, Any] = {
    "cdn": {"site_id": str(uuid4())},
    "matchmaker": {"game_modes": BAD_MODES, "tier": "huge"},
}
REPORTED: set[tuple[str, ...]] = {
    ("display_name", "too-long"),
    ("config", "cdn", "site_id", "not-found"),
    ("config", "matchmaker", "tier", "not-found"),
    ("config", "matchmaker", "game_modes", "a b", "invalid"),
    ("config", "matchmaker", "game_modes", "duel", "max_players", "too-high"),
    ("config", "matchmaker", "game_modes", "duel", "docker", "image_id", "not-found"),
}


async def test_validate_and_create_refuse_the_same(developer: Developer) -> None:
    game_id = await developer.game()
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "x" * 129, "config": BAD_CONFIG}
    response = await developer.good("validate_version", **fields)
    assert shape(response) == {"errors": [{"path": [TEXT], "message": TEXT}]}
    assert {tuple(one["path"]) for one in response["errors"]} == REPORTED
    refusal = await developer.call("create_version", **fields)
    assert (refusal.code, set(refusal.errors)) == ("VALIDATION_FAILED", REPORTED)
    versions = (await developer.good("list_versions", game_id=game_id))["versions"]
    assert [one["display_name"] for one in versions] == ["0.0.1"]


async def test_valid_version_has_no_problems(developer: Developer) -> None:
    fields: dict[str, Any] = {"game_id": await developer.game(), "display_name": "1.0.0"}
    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    assert await developer.good("validate_version", **fields, config=config) == {"errors": []}


async def test_reserved_name_is_unique(developer: Developer) -> None:
    game_id = await developer.game()
    answers = await asyncio.gather(
        *(developer.good("reserve_version_name", game_id=game_id) for _ in range(10))
    )
    assert shape(answers) == [{"version_display_name": TEXT}]
    names = {one["version_display_name"] for one in answers}
    assert names == {f"0.0.{number}" for number in range(2, 12)}


async def test_name_of_a_version_is_not_reserved(developer: Developer) -> None:
    game_id = await developer.game()
    await developer.version(game_id, {}, name="0.0.2")
    await developer.version(game_id, {}, name="0.0.3")
    answer = await developer.good("reserve_version_name", game_id=game_id)
    assert answer == {"version_display_name": "0.0.4"}


async def test_version_of_another_game_is_not_found(developer: Developer) -> None:
    version_id = await developer.version(await developer.game(), {})
    fields = {"game_id": await developer.game(), "version_id": version_id}
    assert await developer.code("get_version", **fields) == "VERSION_NOT_FOUND"


async def complete_build(developer: Developer, game_id: str) -> str:
    image = {"path": "a.tar", "content_length": len(tar())}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1", "image_file": image}
    response = await developer.good("create_game_build", **fields)
    await put_all([response["image_presigned_request"]], {"a.tar": tar()})
    await developer.good("complete_upload", upload_id=response["upload_id"])
    return str(response["build_id"])


def naming(build_id: str, site_id: str) -> dict[str, Any]:
    """Returns a configuration with this build id and this site id at each path that accepts such an id."""
    docker = {**ARENA_MODES["arena"]["docker"], "image_id": build_id}
    mode = {"max_players": 4, "docker": docker}
    return {
        "cdn": {"site_id": site_id},
        "matchmaker": {"game_modes": {"arena": mode}, "docker": {"image_id": build_id}},
    }


NOT_FOUND = {
    ("config", "cdn", "site_id", "not-found"),
    ("config", "matchmaker", "docker", "image_id", "not-found"),
    ("config", "matchmaker", "game_modes", "arena", "docker", "image_id", "not-found"),
}


@pytest.mark.parametrize("is_of_same_developer", [True, False])
async def test_files_of_another_game_are_not_found(
    developer: Developer, is_of_same_developer: bool, records: Records
) -> None:
    other, group_id = developer, developer.full_service.group_id
    if not is_of_same_developer:
        other, group_id = await new_developer(developer, records)
    other_game_id = await other.game(developer_group_id=group_id)
    game_id = await developer.game()
    config = naming(
        await complete_build(other, other_game_id), await complete_site(other, other_game_id)
    )
    before = await records.tables()

    fields: dict[str, Any] = {"game_id": game_id, "display_name": "1.0.0", "config": config}
    response = await developer.good("validate_version", **fields)
    assert {tuple(one["path"]) for one in response["errors"]} == NOT_FOUND
    refusal = await developer.call("create_version", **fields)
    assert (refusal.code, set(refusal.errors)) == ("VALIDATION_FAILED", NOT_FOUND)

    assert await records.tables() == before
    await other.good("create_version", **{**fields, "game_id": other_game_id})
