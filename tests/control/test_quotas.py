"""Quotas: exact limits under concurrency, changes by the operator, and the use of a group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from pyservice.settings.quotas import QUOTAS
from pyservice.storage.quotas import STORED
from tests.control.new_developers import new_developer
from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.command_line import error_output, json_output, output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records
from tests.support.stored_use import check_stored_use

pytestmark = pytest.mark.anyio

LIMITS = {
    "groups": 3,
    "games": 2,
    "cloud_tokens": 3,
    "namespaces": 4,
    "versions": 4,
    "version_bytes": 10_000,
    "configuration_bytes": 1 << 26,
    "builds": 3,
    "build_bytes": 10_000,
    "sites": 3,
    "site_bytes": 10_000,
    "pictures": 3,
    "picture_bytes": 10_000,
    "namespace_tokens": 3,
    "domains": 2,
    "lobbies": 1_000,
    "servers": 200,
    "export_bytes": 1 << 30,
    "server_cpu_millicores": 64_000,
    "server_memory_mb": 262_144,
    "lobby_cpu_millicores": 64_000,
    "lobby_memory_mb": 262_144,
    "log_bytes": 4 << 30,
}
OF_PROCESSES = {
    *("configuration_bytes", "export_bytes", "log_bytes", "lobbies", "servers"),
    *("server_cpu_millicores", "server_memory_mb", "lobby_cpu_millicores", "lobby_memory_mb"),
}
"""Quotas with tests in `test_process_quotas.py`, `test_lobby_exports.py` and `test_log_quota.py`."""
CALLERS = 6

full_service = service_fixture("module", runtime=game_programs.SETTINGS, quotas=LIMITS)


class Target(NamedTuple):
    developer: Developer
    group_id: str
    game_id: str
    version_id: str


class Creation(NamedTuple):
    """Call that creates one object. `admitted` calls fit into the quota of a new game."""

    slug: str
    admitted: int
    fields: Callable[[Target], dict[str, Any]]


def _of_game(**fields: Any) -> Callable[[Target], dict[str, Any]]:
    return lambda target: {"game_id": target.game_id, **_unique(fields)}


def _unique(fields: dict[str, Any]) -> dict[str, Any]:
    name = f"n{uuid4().hex[:18]}"
    return {
        field: value.replace("NEW", name) if isinstance(value, str) else value
        for field, value in fields.items()
    }


def _new_game(target: Target) -> dict[str, Any]:
    return {"developer_group_id": target.group_id, **_unique({"display_name": "NEW"})}


def _new_namespace(target: Target) -> dict[str, Any]:
    fields = _unique({"name_id": "NEW", "display_name": "x"})
    return {"game_id": target.game_id, "version_id": target.version_id, **fields}


def _build(content_length: int) -> Callable[[Target], dict[str, Any]]:
    image = {"path": "x.tar", "content_length": content_length}
    return _of_game(display_name="x", image_file=image, kind="archive", compression="none")


def _site(content_length: int) -> Callable[[Target], dict[str, Any]]:
    return _of_game(display_name="x", files=[{"path": "x", "content_length": content_length}])


_PROD = {"namespace_id": "prod"}
_LARGE = {"cdn": {"build_command": "x" * 2_200}}
CREATIONS = {
    "groups": [Creation("create_group", 2, lambda _: {"display_name": "x"})],
    "games": [Creation("create_game", 1, _new_game)],
    "cloud_tokens": [Creation("create_game_token", 3, _of_game())],
    "namespaces": [Creation("create_namespace", 2, _new_namespace)],
    "versions": [Creation("create_version", 3, _of_game(display_name="NEW", config={}))],
    "version_bytes": [Creation("create_version", 2, _of_game(display_name="NEW", config=_LARGE))],
    "builds": [
        Creation("create_game_build", 3, _build(1)),
        Creation(
            "prepare_build",
            3,
            _of_game(
                environment_id="prod",
                name="x",
                kind="archive",
                image_file={"path": "x", "content_length": 1},
            ),
        ),
    ],
    "build_bytes": [Creation("create_game_build", 2, _build(4_000))],
    "sites": [Creation("create_site", 3, _site(1))],
    "site_bytes": [Creation("create_site", 2, _site(4_000))],
    "pictures": [
        Creation(f"prepare_{kind}", 3, _of_game(path="x.png", content_length=1))
        for kind in ("avatar", "banner", "logo")
    ],
    "picture_bytes": [Creation("prepare_avatar", 2, _of_game(path="x.png", content_length=4_000))],
    "namespace_tokens": [
        Creation("create_service_token", 3, _of_game(environment_id="prod")),
        Creation("create_public_token", 3, _of_game(**_PROD)),
        Creation("create_development_token", 3, _of_game(**_PROD, ports={})),
    ],
    "domains": [Creation("add_domain", 2, _of_game(**_PROD, domain="NEW.example.com"))],
}


@pytest.fixture
async def target(developer: Developer, records: Records) -> Target:
    fresh, group_id = await new_developer(developer, records)
    game_id = await fresh.game(developer_group_id=group_id)
    namespaces = (await fresh.good("list_namespaces", game_id=game_id))["namespaces"]
    return Target(fresh, group_id, game_id, namespaces[0]["version_id"])


async def quotas_of(target: Target) -> dict[str, dict[str, Any]]:
    answer = await target.developer.good("get_quotas", group_id=target.group_id)
    return {row["quota"]: row for row in answer["quotas"]}


def _once(target: Target, creation: Creation, key: str | None = None) -> Awaitable[Any]:
    return target.developer.answered(creation.slug, key, creation.fields(target))


def test_every_quota_has_a_creation() -> None:
    assert {*CREATIONS, *OF_PROCESSES} == {*LIMITS} == {*QUOTAS}


@pytest.mark.parametrize(
    ("name", "creation"),
    [(name, one) for name, creations in CREATIONS.items() for one in creations],
    ids=lambda value: value.slug if isinstance(value, Creation) else value,
)
async def test_quota_admits_exactly_its_limit(
    target: Target, name: str, creation: Creation
) -> None:
    answers = await asyncio.gather(*(_once(target, creation) for _ in range(CALLERS)))
    refused = [answer for answer in answers if answer.code != "OK"]
    assert len(refused) == CALLERS - creation.admitted
    assert {answer.code for answer in refused} == {"QUOTA_EXCEEDED"}
    metadata = refused[-1].metadata
    assert (metadata["quota"], metadata["limit"]) == (name, str(LIMITS[name]))
    assert metadata["scope"] == QUOTAS[name].scope
    if name == "groups":
        return
    row = (await quotas_of(target))[name]
    assert row["limit"] == LIMITS[name]
    assert row["is_default"]
    assert row["use"] == int(metadata["use"])
    assert (row["scope"], row["unit"]) == (QUOTAS[name].scope, QUOTAS[name].unit)


async def test_repeated_request_gets_its_response_with_a_full_quota(target: Target) -> None:
    creation = CREATIONS["sites"][0]
    fields = creation.fields(target)
    key = uuid4().hex
    first = await target.developer.good(creation.slug, key, **fields)
    while (await _once(target, creation)).code == "OK":
        pass
    again = await target.developer.good(creation.slug, key, **fields)
    assert again["site_id"] == first["site_id"]
    assert await target.developer.code(creation.slug, **fields) == "QUOTA_EXCEEDED"


async def test_deleted_build_frees_its_use(target: Target) -> None:
    creation = CREATIONS["builds"][0]
    builds = [(await _once(target, creation)).body["build_id"] for _ in range(LIMITS["builds"])]
    assert (await _once(target, creation)).code == "QUOTA_EXCEEDED"
    await target.developer.good("delete_build", game_id=target.game_id, build_id=builds[0])
    assert (await quotas_of(target))["builds"]["use"] == LIMITS["builds"] - 1
    assert (await _once(target, creation)).code == "OK"


async def test_deleted_games_and_versions_free_their_use(target: Target, records: Records) -> None:
    before = await quotas_of(target)
    version = (await _once(target, CREATIONS["version_bytes"][0])).body["version_id"]
    game = (await _once(target, CREATIONS["games"][0])).body["game_id"]
    fields = {"game_id": game, "display_name": "1", "config": _LARGE}
    await target.developer.good("create_version", **fields)
    filled = await quotas_of(target)
    assert filled["games"]["use"] == before["games"]["use"] + 1
    assert filled["version_bytes"]["use"] > before["version_bytes"]["use"] + 4 * 2_200
    fields = {"game_id": target.game_id, "version_id": version}
    await target.developer.good("delete_version", **fields)
    await target.developer.good("delete_game", game_id=game)
    after = await quotas_of(target)
    assert [after[name] for name in STORED] == [before[name] for name in STORED]
    async with records.database.read() as tx:
        await check_stored_use(tx)


async def test_revoked_token_frees_its_use(target: Target) -> None:
    creation = CREATIONS["cloud_tokens"][0]
    tokens = [(await _once(target, creation)).body for _ in range(LIMITS["cloud_tokens"])]
    assert (await _once(target, creation)).code == "QUOTA_EXCEEDED"
    fields = {"group_id": target.group_id, "token_id": tokens[0]["token_id"]}
    await target.developer.good("revoke_group_token", **fields)
    assert (await _once(target, creation)).code == "OK"


async def test_quota_of_a_game_names_the_game_with_the_largest_use(target: Target) -> None:
    creation = CREATIONS["versions"][0]
    before = (await quotas_of(target))["versions"]
    assert (before["use"], before["object_id"]) == (1, target.game_id)
    assert (await _once(target, creation)).code == "OK"
    assert (await quotas_of(target))["versions"]["use"] == 2
    assert "object_id" not in (await quotas_of(target))["games"]


async def test_operator_changes_the_limits_of_one_group(target: Target) -> None:
    data_dir = target.developer.full_service.data_dir
    creation, of_group = CREATIONS["games"][0], ("--group", target.group_id)
    assert (await _once(target, creation)).code == "OK"
    assert (await _once(target, creation)).code == "QUOTA_EXCEEDED"
    assert await output(data_dir, "quota", "set", "games=3", "site_bytes=2KiB", *of_group) == ""
    assert (await _once(target, creation)).code == "OK"
    assert (await _once(target, creation)).metadata["limit"] == "3"
    lines = (await output(data_dir, "quota", "list", *of_group)).splitlines()
    assert lines[0] == "games\t3\t3"
    listed = (await json_output(data_dir, "quota", "list", *of_group))["quotas"]
    own = {row["quota"]: row["limit"] for row in listed if not row["is_default"]}
    assert own == {"games": 3, "site_bytes": 2_048}
    assert await json_output(data_dir, "quota", "reset", "games", *of_group) == {}
    # The limit is now below the use: nothing is removed, and no game is added.
    row = (await quotas_of(target))["games"]
    assert (row["limit"], row["use"], row["is_default"]) == (LIMITS["games"], 3, True)
    assert (await _once(target, creation)).metadata["use"] == "3"
    await output(data_dir, "quota", "reset", *of_group)
    assert all(row["is_default"] for row in (await quotas_of(target)).values())


@pytest.mark.parametrize(("name", "limit"), [("namespaces", 1), ("versions", 0)])
async def test_new_game_needs_room_for_its_namespaces_and_version(
    target: Target, name: str, limit: int
) -> None:
    data_dir, of_group = target.developer.full_service.data_dir, ("--group", target.group_id)
    await output(data_dir, "quota", "set", f"{name}={limit}", *of_group)
    refused = await _once(target, CREATIONS["games"][0])
    assert (refused.code, refused.metadata["quota"]) == ("QUOTA_EXCEEDED", name)
    await output(data_dir, "quota", "set", f"{name}={limit + 1}", *of_group)
    assert (await _once(target, CREATIONS["games"][0])).code == "OK"


async def test_wrong_limits_change_nothing(target: Target) -> None:
    data_dir, of_group = target.developer.full_service.data_dir, ("--group", target.group_id)
    words = ("quota", "set", "games=7", "lives=9", "groups=9")
    message = await error_output(data_dir, *words, *of_group)
    assert "VALIDATION_FAILED: A group has the quotas games, " in message
    assert "limits.groups.not-found; limits.lives.not-found" in message
    unknown = ("--group", str(uuid4()))
    for command in (["list"], ["set", "games=1"], ["reset"]):
        assert "GROUP_NOT_FOUND" in await error_output(data_dir, "quota", *command, *unknown)
    assert all(row["is_default"] for row in (await quotas_of(target)).values())
