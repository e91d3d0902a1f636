"""The way through captcha and verification: in which order, what may change meanwhile, who shares an
answer, and who gives up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pyservice.dataplane.admission_checks import VerificationCheck
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.network.hosts import AllowedAddresses
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.configurations import NAMESPACE_ID, VERSION_ID, version
from tests.dataplane.gated_scene import GatedScene, gated_scene, refusal
from tests.dataplane.other_server import OtherServer, hold, other_server, until_asked
from tests.dataplane.scene import MODES
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

LATER_VERSION_ID = "0192f000-0000-7000-8000-0000000000b9"


@pytest.fixture
async def game() -> AsyncIterator[OtherServer]:
    async with other_server() as server:
        yield server


@pytest.fixture
async def scene(engine: Engine) -> AsyncIterator[GatedScene]:
    async with gated_scene(engine) as scene:
        yield scene


async def test_no_place_is_reserved_while_the_game_thinks(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    go = hold(game)
    joining = asyncio.create_task(scene.join(made.lobby_id))
    await until_asked(game)
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)
    go.set()
    await joining
    assert scene.places(made.lobby_id) == (0, 1, 0, 0)


async def test_a_lobby_that_ends_meanwhile_is_told(scene: GatedScene, game: OtherServer) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    go = hold(game)
    joining = asyncio.create_task(scene.join(made.lobby_id))
    await until_asked(game)
    request = pb.DetachLobbyRequest(game_id="arena", lobby_id=made.lobby_id)
    await scene.fleet.detach(request, scene.back_end())
    go.set()
    assert (await refusal(joining)).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_a_version_that_changes_meanwhile_holds_for_the_find(
    scene: GatedScene, game: OtherServer
) -> None:
    await scene.attach("tagged")
    scene.ask(tagged_find=game.url("/old"))
    go = hold(game)
    finding = asyncio.create_task(scene.find("tagged"))
    await until_asked(game)
    action = {"enabled": True, "verification": {"url": game.url("/new"), "headers": {}}}
    later = {**MODES, "tagged": {**MODES["tagged"], "actions": {"find": action}}}
    scene.feed(versions=[version(LATER_VERSION_ID, **later)], current_version_id=LATER_VERSION_ID)
    fresh = await scene.attach("tagged")
    go.set()
    answer = await finding
    assert answer.lobby.lobby_id == fresh.lobby_id
    assert [seen.path for seen in game.seen] == ["/old", "/new"]


async def test_the_same_question_is_not_asked_twice_when_something_else_changes(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    limits = {"lobby_count_max": 512, "max_players": 1}
    scene.ask(duel_join=game.url())
    go = hold(game)
    joining = asyncio.create_task(scene.join(made.lobby_id, party_size=2))
    await until_asked(game)
    scene.ask(None, {"matchmaker": limits}, duel_join=game.url())
    go.set()
    # The limit is the one of now, and the game has answered already.
    assert (await refusal(joining)).code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"
    assert len(game.seen) == 1


async def test_a_captcha_is_not_asked_twice_when_something_else_changes(
    engine: Engine, game: OtherServer
) -> None:
    async with other_server() as provider, gated_scene(engine, captcha_a=provider.url()) as scene:
        provider.answers(200, b'{"success": true}')
        made = await scene.attach()
        rule = {
            "captcha_a": {"secret_key": "s", "site_key": "k"},
            "requests_before_reverify": 0,
            "verification_ttl": 1_000,
        }
        scene.ask(rule, duel_join=game.url())
        go = hold(game)
        proof = pb.Captcha(captcha_a=pb.CaptchaAnswer(client_response="human"))
        joining = asyncio.create_task(scene.join(made.lobby_id, captcha=proof))
        await until_asked(game)
        scene.ask(rule, {"display_name": "Changed"}, duel_join=game.url())
        go.set()
        await joining
        assert len(provider.seen) == 1


async def test_a_namespace_that_goes_away_meanwhile_is_told(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    go = hold(game)
    joining = asyncio.create_task(scene.join(made.lobby_id))
    await until_asked(game)
    scene.namespaces.remove(raw_id(NAMESPACE_ID))
    go.set()
    assert (await refusal(joining)).code == "TOKEN_REVOKED"


async def test_a_lobby_keeps_the_verification_of_its_version(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    action = {"enabled": True, "verification": {"url": game.url("/old"), "headers": {}}}
    old = version(VERSION_ID, duel={**MODES["duel"], "actions": {"join": action}})
    scene.feed(
        versions=[old, version(LATER_VERSION_ID, **MODES)], current_version_id=LATER_VERSION_ID
    )
    game.answers(403)
    error = await refusal(scene.join(made.lobby_id))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    fresh = await scene.attach()
    await scene.join(fresh.lobby_id)
    assert [seen.path for seen in game.seen] == ["/old"]


async def test_the_deadline_of_the_caller_ends_the_question(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    hold(game)
    loop = asyncio.get_running_loop()
    for number, key in enumerate((None, "key")):
        left_s = 0.1
        # Longer, where it has passed before the game was asked.
        while len(game.seen) <= number:
            caller = scene.client(deadline=loop.time() + left_s, idempotency_key=key)
            assert (await refusal(scene.join(made.lobby_id, caller))).code == "DEADLINE_EXCEEDED"
            left_s *= 2
    async with asyncio.timeout(PATIENCE_S):
        while game.gone < len(game.seen):
            await asyncio.sleep(0.01)
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_client_that_goes_away_ends_the_question(
    scene: GatedScene, game: OtherServer, key: str | None
) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    hold(game)
    joining = asyncio.create_task(scene.join(made.lobby_id, scene.client(idempotency_key=key)))
    await until_asked(game)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    async with asyncio.timeout(PATIENCE_S):
        while not game.gone:
            await asyncio.sleep(0.01)
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)
    assert len(scene.entrance._flights) == 0
    # It asks again, and nothing of the first is left.
    game.answers(200)
    await scene.join(made.lobby_id, scene.client(idempotency_key=key))


async def test_a_repeated_request_is_answered_without_asking_again(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach("tagged")
    scene.ask(tagged_join=game.url(), tagged_find=game.url())
    joining = scene.client(idempotency_key="join")
    finding = scene.client(idempotency_key="find")
    joined = await scene.join(made.lobby_id, joining)
    found = await scene.find("tagged", finding)
    game.answers(403)
    assert await scene.join(made.lobby_id, joining) == joined
    assert await scene.find("tagged", finding) == found
    assert len(game.seen) == 2
    error = await refusal(scene.join(made.lobby_id, joining, party_size=2))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"
    assert scene.places(made.lobby_id) == (0, 2, 0, 0)


async def test_a_denied_request_is_asked_about_afresh(scene: GatedScene, game: OtherServer) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    caller = scene.client(idempotency_key="key")
    game.answers(403)
    error = await refusal(scene.join(made.lobby_id, caller))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    game.answers(200)
    await scene.join(made.lobby_id, caller)
    assert len(game.seen) == 2


async def test_captcha_comes_before_verification(scene: GatedScene, game: OtherServer) -> None:
    made = await scene.attach()
    rule = {
        "captcha_a": {"secret_key": "s", "site_key": "k"},
        "requests_before_reverify": 1,
        "verification_ttl": 1_000,
    }
    scene.ask(rule, duel_join=game.url(), duel_find=game.url())
    for work in (scene.join(made.lobby_id), scene.find()):
        assert (await refusal(work)).code == "CAPTCHA_REQUIRED"
    assert game.seen == []


async def test_a_namespace_that_asks_nothing_meets_no_gate(scene: GatedScene) -> None:
    assert scene.namespaces.resolved(raw_id(NAMESPACE_ID)).admission_rules is None
    scene.entrance._verification = VerificationCheck(OutboundHttpClient(AllowedAddresses()))
    made = await scene.attach()
    await scene.join(made.lobby_id)
    assert scene.entrance._verification._outbound._session is None
