"""Pages of the lists of the control plane."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest

from pyservice.pb.hosting.v1 import servers_pb2
from pyservice.storage import builds, servers
from pyservice.timestamps import now_ms
from tests.control.site_files import FILES, file_fields
from tests.support.full_service import Developer
from tests.support.namespace_scenario import IDS, Records

pytestmark = pytest.mark.anyio

COUNT: Final = 5


class ListedItems(NamedTuple):
    """List with the field of its items. `limit_max` is the largest `limit`."""

    slug: str
    member: str
    limit_max: int = 10_000


LISTS: Final = (
    ListedItems("get_games", "games"),
    ListedItems("list_namespaces", "namespaces"),
    ListedItems("list_versions", "versions"),
    ListedItems("list_builds", "builds"),
    ListedItems("list_game_builds", "builds"),
    ListedItems("list_sites", "sites"),
    ListedItems("list_avatars", "custom_avatars"),
    ListedItems("list_namespace_tokens", "tokens"),
    ListedItems("list_group_tokens", "tokens"),
    ListedItems("version_history", "versions", 256),
    ListedItems("list_lobby_records", "lobbies", 256),
    ListedItems("list_servers", "servers", 256),
)


async def filled(owner: Developer, records: Records) -> tuple[Developer, dict[str, str]]:
    """Returns a developer with at least five items in each list, and the path fields."""
    identity_id, group_ids = await records.identity("First", "Second")
    token, _ = await records.cloud_token(identity_id)
    developer = Developer(owner.full_service, owner.client, token)
    games = [
        await developer.game(developer_group_id=group_ids[number % 2]) for number in range(COUNT)
    ]
    of_game = {"game_id": games[0]}
    of_namespace = {**of_game, "namespace_id": "prod"}
    image = {"path": "server.tar", "content_length": 1}
    for number in range(COUNT):
        name = {"display_name": f"Item {number}"}
        version_id = await developer.version(games[0], {})
        await developer.good(
            "create_namespace", **of_game, **name, name_id=f"n{number}", version_id=version_id
        )
        await developer.good("set_version", **of_namespace, version_id=version_id)
        await developer.good(
            "create_game_build", **of_game, **name, image_tag="a", image_file=image
        )
        await developer.good("create_site", **of_game, **name, files=file_fields(FILES))
        await developer.good("prepare_avatar", **of_game, path="a.png", content_length=1)
        await developer.public_token(games[0])
        await records.cloud_token(identity_id, group_ids[0])
        prod = (await developer.good("get_namespace", **of_namespace))["namespace"]
        await records.past_lobby(prod["namespace_id"], version_id)
        await add_past_server(records, prod["namespace_id"])
    return developer, {**of_namespace, "environment_id": "prod", "group_id": group_ids[0]}


async def add_past_server(records: Records, namespace_id: str, argument: str = "") -> None:
    server_id = IDS.new()
    server = servers_pb2.Server(id=server_id, environment=namespace_id)
    server.runtime.arguments.append(argument)
    row = {
        "server_id": server_id,
        "namespace_id": namespace_id,
        "build_id": IDS.new(),
        "record": server.SerializeToString(),
        "create_ms": now_ms(),
        "destroy_ms": now_ms(),
        "is_placed": True,
    }
    async with records.database.write() as tx:
        await servers.add(tx, row, {}, ())


def fields_of(listed: ListedItems, path_fields: dict[str, str]) -> dict[str, Any]:
    names = {
        "get_games": (),
        "list_group_tokens": ("group_id",),
        "list_builds": ("game_id", "environment_id"),
        "list_servers": ("game_id", "environment_id"),
        "list_namespace_tokens": ("game_id", "namespace_id"),
        "version_history": ("game_id", "namespace_id"),
        "list_lobby_records": ("game_id", "namespace_id"),
    }.get(listed.slug, ("game_id",))
    fields: dict[str, Any] = {name: path_fields[name] for name in names}
    if listed.slug == "list_servers":
        fields["include_destroyed"] = True
    return fields


async def test_pages_have_all_items_once_in_the_order_of_the_list(
    developer: Developer, records: Records
) -> None:
    member, path_fields = await filled(developer, records)
    for listed in LISTS:
        fields = fields_of(listed, path_fields)
        whole = await member.good(listed.slug, **fields)
        assert "cursor" not in whole, listed
        assert len(whole[listed.member]) >= COUNT, listed
        items: list[Any] = []
        more: dict[str, Any] = {"limit": 2}
        while more:
            page = await member.good(listed.slug, **fields, **more)
            assert 1 <= len(page[listed.member]) <= 2, listed
            items += page[listed.member]
            more = {"limit": 2, "cursor": page["cursor"]} if "cursor" in page else {}
        assert items == whole[listed.member], listed


async def test_wrong_pages_are_refused(developer: Developer) -> None:
    game_id = await developer.game()
    path_fields = {
        "game_id": game_id,
        "namespace_id": "prod",
        "environment_id": "prod",
        "group_id": developer.full_service.group_id,
    }
    for listed in LISTS:
        fields = fields_of(listed, path_fields)
        for more, problem in (
            ({"limit": 0}, ("limit", "too-low")),
            ({"limit": listed.limit_max + 1}, ("limit", "too-high")),
            ({"cursor": "nothing"}, ("cursor", "invalid")),
        ):
            refusal = await developer.call(listed.slug, **fields, **more)
            assert (refusal.code, refusal.errors) == ("QUERY_INVALID", (problem,)), listed
        answer = await developer.good(listed.slug, **fields, limit=listed.limit_max)
        assert "cursor" not in answer, listed


async def pages_of(developer: Developer, slug: str, **fields: Any) -> list[dict[str, Any]]:
    pages = [await developer.good(slug, **fields)]
    while "cursor" in pages[-1]:
        pages.append(await developer.good(slug, **fields, cursor=pages[-1]["cursor"]))
    return pages


async def test_page_has_a_limit_in_bytes(developer: Developer, records: Records) -> None:
    game_id = await developer.game()
    of_game = {"game_id": game_id, "environment_id": "prod"}
    prod = await developer.good("get_namespace", game_id=game_id, namespace_id="prod")
    for _ in range(30):
        await add_past_server(records, prod["namespace"]["namespace_id"], "x" * 500_000)
    fields = {**of_game, "include_destroyed": True, "limit": 256}
    pages = await pages_of(developer, "list_servers", **fields)
    assert [len(page["servers"]) for page in pages] == [8, 8, 8, 6]
    ids = [server["id"] for page in pages for server in page["servers"]]
    assert ids == sorted(set(ids), reverse=True)


@pytest.mark.full
async def test_page_of_builds_counts_their_tags(developer: Developer, records: Records) -> None:
    game_id = await developer.game()
    image = {"path": "x", "content_length": 1}
    tags = {f"tag-{number}": "é" * 512 for number in range(32)}
    fields: dict[str, Any] = {
        "display_name": "x",
        "image_file": image,
        "kind": "archive",
        "compression": "none",
    }
    for _ in range(150):
        build = await developer.good("create_game_build", game_id=game_id, **fields)
        async with records.database.write() as tx:
            await builds.change_tags(tx, build["build_id"], tags, ())
    for slug, more in (("list_builds", {"environment_id": "prod"}), ("list_game_builds", {})):
        pages = await pages_of(developer, slug, game_id=game_id, **more)
        assert [len(page["builds"]) for page in pages] == [125, 25]
        assert all(build["tags"] == tags for page in pages for build in page["builds"])
