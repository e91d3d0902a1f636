"""Versions. `test_configuration_validation` tests the rules of their configurations."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.control.configurations import EVERYTHING, everything
from tests.control.response_shapes import ID, TEXT, TIME, shape
from tests.control.test_games import BAD_DISPLAY_NAMES
from tests.support.full_service import ARENA_MODES, Developer

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
    created = await developer.good(
        "create_version", game_id=game_id, display_name="1.0.0", config=config
    )
    assert shape(created) == {"version_id": ID}
    answer = await developer.good("get_version", game_id=game_id, version_id=created["version_id"])
    version = answer.pop("version")
    assert answer == {}
    assert version.pop("config") == config
    assert shape(version) == {"create_ts": TIME, "display_name": TEXT, "version_id": ID}
    assert version["display_name"] == "1.0.0"
    assert version["version_id"] == created["version_id"]


async def test_versions_are_listed_newest_first(
    developer: Developer,
) -> None:
    game_id = await developer.game()
    created = [await developer.version(game_id, {}, name=f"1.0.{number}") for number in range(3)]
    answer = await developer.good("list_versions", game_id=game_id)
    summary = {"version_id": ID, "create_ts": TIME, "display_name": TEXT}
    assert shape(answer) == {"versions": [summary]}
    assert [one["version_id"] for one in answer["versions"]][:3] == created[::-1]
    assert [one["display_name"] for one in answer["versions"]] == [
        "1.0.2",
        "1.0.1",
        "1.0.0",
        "0.0.1",
    ]


async def test_two_versions_may_share_a_name(developer: Developer) -> None:
    game_id = await developer.game()
    first = await developer.version(game_id, {}, name="twice")
    assert await developer.version(game_id, {}, name="twice") != first


BAD_MODES: dict[str, Any] = {
    "a b": {},
    "duel": {"max_players": 257, "docker": {"image_id": str(uuid4())}},
}
BAD_CONFIG: dict[str, Any] = {"matchmaker": {"game_modes": BAD_MODES, "tier": "huge"}}
REPORTED: set[tuple[str, ...]] = {
    ("display_name", "too-long"),
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
    refused = await developer.call("create_version", **fields)
    assert (refused.code, set(refused.errors)) == ("VALIDATION_FAILED", REPORTED)
    versions = (await developer.good("list_versions", game_id=game_id))["versions"]
    assert [one["display_name"] for one in versions] == ["0.0.1"]


async def test_valid_version_has_no_problems(developer: Developer) -> None:
    fields: dict[str, Any] = {"game_id": await developer.game(), "display_name": "1.0.0"}
    config = {"matchmaker": {"game_modes": ARENA_MODES}}
    assert await developer.good("validate_version", **fields, config=config) == {"errors": []}


@pytest.mark.parametrize(("text", "word"), BAD_DISPLAY_NAMES)
async def test_invalid_name_is_refused(owner: Developer, text: str, word: str) -> None:
    fields: dict[str, Any] = {"game_id": await owner.game(), "display_name": text, "config": {}}
    answer = await owner.call("create_version", **fields)
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (("display_name", word),))


async def test_unknown_file_is_not_found(developer: Developer) -> None:
    config = {"cdn": {"site_id": str(uuid4())}}
    fields: dict[str, Any] = {
        "game_id": await developer.game(),
        "display_name": "x",
        "config": config,
    }
    answer = await developer.call("create_version", **fields)
    assert answer.errors == (("config", "cdn", "site_id", "not-found"),)


# Reserved names -----------------------------------------------------------------------------------


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


# Unknown objects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slug", ["create_version", "validate_version", "reserve_version_name", "list_versions"]
)
async def test_unknown_game_is_not_found(developer: Developer, slug: str) -> None:
    request_fields: dict[str, Any] = (
        {"display_name": "x", "config": {}} if "_version" in slug else {}
    )
    fields: dict[str, Any] = (
        {} if slug in ("reserve_version_name", "list_versions") else request_fields
    )
    assert await developer.code(slug, game_id=str(uuid4()), **fields) == "GAME_NOT_FOUND"


async def test_first_missing_path_part_is_reported(developer: Developer) -> None:
    game_id, other_id = await developer.game(), await developer.game()
    version_id = await developer.version(other_id, {})
    unknown = str(uuid4())
    for target, code in (
        ((unknown, unknown), "GAME_NOT_FOUND"),
        ((unknown, version_id), "GAME_NOT_FOUND"),
        ((game_id, unknown), "VERSION_NOT_FOUND"),
        ((game_id, version_id), "VERSION_NOT_FOUND"),
    ):
        fields = dict(zip(("game_id", "version_id"), target, strict=True))
        assert await developer.code("get_version", **fields) == code


async def test_version_is_not_found_by_name(developer: Developer) -> None:
    fields: dict[str, Any] = {"game_id": await developer.game(), "version_id": "0-0-1"}
    answer = await developer.call("get_version", **fields)
    assert (answer.code, answer.errors) == ("ID_INVALID", (("version_id", "invalid"),))
