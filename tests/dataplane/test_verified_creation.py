"""The game's own server lets users make lobbies or not (decisions 5.5, 7): what it is told of one that is wanted, and
that none is made before it has said yes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.admission import Admission
from pyservice.dataplane.admission_checks import CaptchaCheck, VerificationCheck
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.network.hosts import AllowedAddresses
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.gated_scene import MemoryStandings
from tests.dataplane.other_server import OtherServer, hold, other_server, until_asked
from tests.dataplane.processes import MODES, Place, asking, connected_place, refused
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CONFIG = b'{"seed": 18446744073709551615,  "map": "old  town"}'


@pytest.fixture
async def game() -> AsyncIterator[OtherServer]:
    async with other_server() as server:
        yield server


@pytest.fixture
async def place(engine: Engine, game: OtherServer) -> AsyncIterator[Place]:
    """Whose `duel` asks before it makes lobbies."""
    create = {**MODES["duel"]["actions"]["create"], "verification": {"url": game.url("/may-make")}}
    made = await connected_place(engine, duel={**MODES["duel"], "actions": {"create": create}})
    outbound = OutboundHttpClient(AllowedAddresses((ip_network("127.0.0.0/8"),)), timeout_ms=5_000)
    regions = made.matchmaker._regions
    captcha = CaptchaCheck(outbound, MemoryStandings(), {}, lambda: 0)
    entrance = Admission(engine, made.namespaces, regions, captcha, VerificationCheck(outbound))
    made.matchmaker = Matchmaker(
        engine, made.namespaces, regions, entrance, made.lobby_templates, made.player_addresses
    )
    yield made
    await outbound.close()


async def made_lobby(place: Place, creating: asyncio.Future[Any]) -> Any:
    """What the runtime is told of the lobby, which is ready now and told to its maker."""
    [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
    await place.serve()
    await place.ready(wanted.lobby_id)
    made = await asyncio.wait_for(creating, PATIENCE_S)
    assert made.lobby.lobby_id == wanted.lobby_id
    return wanted


async def test_a_create_tells_its_kind_and_configuration_before_anything_is_made(
    place: Place, game: OtherServer
) -> None:
    say_yes = hold(game)
    data = b'{"ticket":  1e400}'
    wish = pb.CreateLobbyRequest(
        game_mode="duel",
        tags={"map": "sea"},
        max_players=1,
        lobby_config=CONFIG,
        verification_data=data,
    )
    asked = place.matchmaker.create(wish, place.client(user_agent="Game/1.0"))
    async with asking(asked) as creating:
        await until_asked(game)
        assert (await place.wanted()).lobbies == [], "nobody knows yet whether it may be"
        say_yes.set()
        wanted = await made_lobby(place, creating)
    assert wanted.spec.lobby_config == CONFIG
    [seen] = game.seen
    assert (seen.method, seen.path) == ("POST", "/may-make")
    # What users wrote is handed on as they wrote it.
    assert CONFIG in seen.body
    assert data in seen.body
    told = json.loads(seen.body)
    assert told.pop("verification_data") is not None
    assert told == {
        "game": {
            "namespace_id": NAMESPACE_ID,
            "game_mode": "duel",
            "lobby": None,
            "state": None,
            "config": json.loads(CONFIG),
            "tags": {"map": "sea"},
            "max_players": 1,
        },
        "client": {"address": "10.0.0.1", "user_agent": "Game/1.0"},
        "kind": "create",
        "party_size": 1,
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "MATCHMAKER_VERIFICATION_FAILED"),
        (302, "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
        (503, "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
    ],
)
async def test_a_create_that_is_not_let_in_makes_nothing(
    place: Place, game: OtherServer, status: int, code: str
) -> None:
    game.answers(status)
    assert (await refused(place.create(lobby_config=CONFIG))).code == code
    assert (await place.wanted()).lobbies == []
    assert [json.loads(seen.body)["kind"] for seen in game.seen] == ["create"]


async def test_nobody_is_asked_about_what_the_mode_does_not_make(
    place: Place, game: OtherServer
) -> None:
    game.answers(403)
    assert (await refused(place.create(max_players=33))).code == "BODY_INVALID"
    nowhere = await refused(place.create(region="nowhere"))
    assert nowhere.code == "MATCHMAKER_REGION_NOT_FOUND"
    async with asking(place.create("private")) as creating:
        await made_lobby(place, creating)
    assert game.seen == [], "nor about modes that do not ask"


async def test_a_repeated_create_is_the_same_lobby_and_asks_nobody_again(
    place: Place, game: OtherServer
) -> None:
    wish = pb.CreateLobbyRequest(game_mode="duel", lobby_config=CONFIG)

    async def create() -> Any:
        return await place.matchmaker.create(wish, place.client(idempotency_key="again"))

    async with asking(create()) as creating:
        wanted = await made_lobby(place, creating)
    game.answers(403)
    assert (await create()).lobby.lobby_id == wanted.lobby_id
    assert len(game.seen) == 1
