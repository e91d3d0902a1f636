"""Pages of the server list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest

from pyservice.control.servers import PAGE
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, eventually
from tests.support.server_back_end import ServerBackEnd

pytestmark = [pytest.mark.anyio, pytest.mark.full]

COUNT: Final = 2 * PAGE + 3
FULL, OVER = {"shelf": "full"}, {"shelf": "over"}
"""Exactly one page of servers has the tag `FULL`, and one server more has the tag `OVER`."""


@dataclass
class ListedServers:
    game_id: str
    token: str
    build_id: str
    ids: list[str]
    tags: dict[str, dict[str, str]]

    def newest(self, **tags: str) -> list[str]:
        return [one for one in self.ids[::-1] if tags.items() <= self.tags[one].items()]


_LISTS: Final[dict[FullService, ListedServers]] = {}


async def filled(servers: ServerBackEnd) -> ListedServers:
    servers.build_id = await servers.build(game_programs.server_archive("true"))
    listed_servers = ListedServers(servers.game_id, servers.token, servers.build_id, [], {})
    for number in range(COUNT):
        tags = {"all": "yes", "parity": str(number % 2)}
        if number % 2:
            tags |= OVER
        elif number < 2 * PAGE:
            tags |= FULL
        server_id = (await servers.create(tags=tags, network={"ports": {}}))["id"]
        listed_servers.ids.append(server_id)
        listed_servers.tags[server_id] = tags

    async def are_all_ended() -> bool:
        return not (await servers.good("list_servers"))["servers"]

    await eventually(are_all_ended)
    return listed_servers


@pytest.fixture
async def back_end(full_service: FullService, developer: Developer) -> ServerBackEnd:
    if full_service not in _LISTS:
        game_id = await developer.game()
        first = ServerBackEnd(developer, game_id, await developer.service_token(game_id))
        first.server_ids = []
        _LISTS[full_service] = await filled(first)
    back_end = ServerBackEnd(developer, _LISTS[full_service].game_id, _LISTS[full_service].token)
    back_end.server_ids, back_end.build_id = [], _LISTS[full_service].build_id
    return back_end


@pytest.fixture
def listed_servers(full_service: FullService, back_end: ServerBackEnd) -> ListedServers:
    return _LISTS[full_service]


async def pages(back_end: ServerBackEnd, **fields: Any) -> list[list[str]]:
    server_ids: list[list[str]] = []
    begin: dict[str, str] = {}
    while begin or not server_ids:
        answer = await back_end.good("list_servers", include_destroyed=True, **begin, **fields)
        server_ids.append([one["id"] for one in answer["servers"]])
        begin = {"cursor": answer["cursor"]} if "cursor" in answer else {}
    return server_ids


def flat(server_ids: list[list[str]]) -> list[str]:
    return [one for page in server_ids for one in page]


async def test_pages_have_64_servers_newest_first(
    back_end: ServerBackEnd, listed_servers: ListedServers
) -> None:
    server_ids = await pages(back_end)
    assert [len(page) for page in server_ids] == [64, 64, len(listed_servers.ids) - 128]
    assert flat(server_ids) == listed_servers.newest()


async def test_pages_match_every_tag(
    back_end: ServerBackEnd, listed_servers: ListedServers
) -> None:
    server_ids = await pages(back_end, tags_json='{"parity": "0", "all": "yes"}')
    assert flat(server_ids) == listed_servers.newest(parity="0")
    assert [len(page) for page in server_ids] == [64, len(listed_servers.newest(parity="0")) - 64]
    assert await pages(back_end, tags_json='{"parity": "0", "all": "no"}') == [[]]


async def test_exactly_full_page_is_the_last(
    back_end: ServerBackEnd, listed_servers: ListedServers
) -> None:
    assert [len(listed_servers.newest(**FULL)), len(listed_servers.newest(**OVER))] == [64, 65]
    assert await pages(back_end, tags_json='{"shelf": "full"}') == [listed_servers.newest(**FULL)]
    over = listed_servers.newest(**OVER)
    assert await pages(back_end, tags_json='{"shelf": "over"}') == [over[:64], over[64:]]


async def test_new_server_does_not_shift_pages(
    back_end: ServerBackEnd, listed_servers: ListedServers
) -> None:
    before = listed_servers.newest()
    first = await back_end.good("list_servers", include_destroyed=True)
    assert first["cursor"] == before[63]
    sleeper = await back_end.build(game_programs.server_archive("sleep", "3600"))
    server = await back_end.create(
        runtime={"build": sleeper}, tags={"all": "yes"}, network={"ports": {}}
    )
    listed_servers.ids.append(server["id"])
    listed_servers.tags[server["id"]] = {"all": "yes"}
    second = await back_end.good("list_servers", include_destroyed=True, cursor=first["cursor"])
    assert [one["id"] for one in second["servers"]] == before[64:128]
    live = await back_end.good("list_servers", tags_json='{"all": "yes"}')
    assert ([one["id"] for one in live["servers"]], "cursor" in live) == ([server["id"]], False)
    await back_end.good("destroy_server", server_id=server["id"], override_kill_timeout=0)
    await back_end.until(server["id"], "destroyed")
    assert (await back_end.good("list_servers"))["servers"] == []
