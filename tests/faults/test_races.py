"""Many at once through both doors: places are never given twice, a token is used once, and who
comes too often is told so.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.faults.actors import Scene, attach_fields
from tests.faults.conftest import MakePlane, OpenDoors
from tests.faults.doors import Answer, Door, Doors
from tests.faults.plane import Plane

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

CROWD = 1_000


async def all_at_once(
    doors: Doors, ask: Callable[[Door], Awaitable[Answer]], count: int = CROWD
) -> list[Answer]:
    """Half of the requests through each door, all sent before the first answer can come."""
    both = list(doors)
    return await asyncio.gather(*(ask(both[number % 2]) for number in range(count)))


@pytest.fixture
async def plane(make_plane: MakePlane) -> Plane:
    made = make_plane(shim=None)
    await made.start()
    return made


@pytest.fixture
async def doors(plane: Plane, open_doors: OpenDoors) -> Doors:
    return open_doors(plane)


@pytest.fixture
async def scene(plane: Plane, doors: Doors) -> Scene:
    return Scene(plane, doors.http, await plane.public_token())


async def test_of_a_thousand_joins_exactly_as_many_get_in_as_there_are_places(
    scene: Scene, doors: Doors
) -> None:
    lobby = await scene.attach("crowd")

    async def join(door: Door) -> Answer:
        return await door.call("join", {"lobby_id": lobby.id}, token=scene.client_token)

    answers = await all_at_once(doors, join)
    codes = Counter(answer.code for answer in answers)
    assert codes == {"OK": 100, "MATCHMAKER_LOBBY_FULL": 900}
    winners = [answer for answer in answers if answer.code == "OK"]
    assert len({token for answer in winners for token in answer.tokens}) == 100
    assert {answer.door for answer in winners} == {"http", "grpc"}


async def test_of_a_thousand_finds_for_parties_no_lobby_gets_more_than_its_limit(
    scene: Scene, doors: Doors
) -> None:
    lobbies = [await scene.attach("crowd") for _ in range(3)]
    fields = {"game_modes": ["crowd"], "party_size": 3}

    async def find(door: Door) -> Answer:
        return await door.call("find", fields, token=scene.client_token)

    answers = await all_at_once(doors, find, 300)
    codes = Counter(answer.code for answer in answers)
    # 33 parties of three in each lobby of a hundred, and nobody is split.
    assert codes == {"OK": 99, "MATCHMAKER_NO_AVAILABLE_LOBBIES": 201}
    winners = [answer for answer in answers if answer.code == "OK"]
    assert Counter(answer.lobby_id for answer in winners) == {lobby.id: 33 for lobby in lobbies}
    assert len({token for answer in winners for token in answer.tokens}) == 297


async def test_of_a_thousand_uses_of_one_token_exactly_one_succeeds(
    scene: Scene, doors: Doors
) -> None:
    lobby = await scene.attach("crowd")
    token = await scene.player(lobby)

    async def connect(door: Door) -> Answer:
        return await door.call("connected", {"player_token": token}, token=lobby.token)

    answers = await all_at_once(doors, connect)
    assert Counter(answer.code for answer in answers) == {"OK": 1, "PLAYER_TOKEN_CONSUMED": 999}
    counted = await doors.http.call("statistics", token=scene.client_token)
    assert counted.body["player_count"] == 1


async def test_a_thousand_repetitions_of_one_use_are_one_use(scene: Scene, doors: Doors) -> None:
    lobby = await scene.attach("crowd")
    token = await scene.player(lobby)
    body = {"player_token": token}

    async def connect(door: Door) -> Answer:
        return await door.call("connected", body, token=lobby.token, key="socket")

    answers = await all_at_once(doors, connect)
    assert {answer.code for answer in answers} == {"OK"}
    for door in doors:
        for key in (None, "another"):
            answer = await door.call("connected", body, token=lobby.token, key=key)
            assert answer.code == "PLAYER_TOKEN_CONSUMED"
    await scene.must("disconnected", body, token=lobby.token)
    # The use is over: a repetition tells how it ended.
    for door in doors:
        answer = await door.call("connected", body, token=lobby.token, key="socket")
        assert answer.code == "PLAYER_TOKEN_CONSUMED"


async def test_a_thousand_repetitions_of_one_join_share_one_place(
    scene: Scene, doors: Doors
) -> None:
    lobby = await scene.attach("crowd")

    async def join(door: Door) -> Answer:
        fields = {"lobby_id": lobby.id}
        return await door.call("join", fields, token=scene.client_token, key="the-same")

    answers = await all_at_once(doors, join)
    assert {answer.code for answer in answers} == {"OK"}
    assert len({token for answer in answers for token in answer.tokens}) == 1
    assert await scene.plane.metric("hosting_slots", state="reserved") == 1


async def test_players_who_leave_while_others_come_never_make_a_place_too_many(
    scene: Scene, doors: Doors
) -> None:
    lobby = await scene.attach("single")
    both = list(doors)
    inside = most = 0

    async def come_and_go(number: int) -> int:
        nonlocal inside, most
        door, entered = both[number % 2], 0
        for _ in range(20):
            answer = await door.call("join", {"lobby_id": lobby.id}, token=scene.client_token)
            if answer.code == "MATCHMAKER_LOBBY_FULL":
                continue
            assert answer.code == "OK", answer
            inside, entered = inside + 1, entered + 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            fields = {"player_token": answer.tokens[0]}
            assert (await door.call("disconnected", fields, token=lobby.token)).code == "OK"
        return entered

    entered = await asyncio.gather(*(come_and_go(number) for number in range(40)))
    assert sum(entered) > 0
    assert most == 1
    await scene.join(lobby)


class TestDefaultRates:
    """Decisions 9: client operations 20/s burst 100 per address, attach 50/s burst 200."""

    @pytest.fixture
    async def plane(self, make_plane: MakePlane) -> Plane:
        made = make_plane(shim=None, settings={"rate_limits": {}})
        await made.start()
        return made

    async def test_a_client_that_asks_too_often_is_told_when_to_come_again_at_both_doors(
        self, scene: Scene, doors: Doors
    ) -> None:
        async def look(door: Door) -> Answer:
            return await door.call("list", token=scene.client_token)

        # One bucket for both doors: changing doors gains nothing.
        began_s = time.monotonic()
        answers = await all_at_once(doors, look, 400)
        codes = Counter(answer.code for answer in answers)
        assert set(codes) == {"OK", "RATE_LIMITED"}
        assert 100 <= codes["OK"] <= 101 + 20 * (time.monotonic() - began_s)
        limited = [answer for answer in answers if answer.code == "RATE_LIMITED"]
        assert {answer.door for answer in limited} == {"http", "grpc"}
        assert {answer.status for answer in limited} == {"429", "RESOURCE_EXHAUSTED"}
        for answer in limited:
            assert answer.retry_after_s is not None
            assert 0 < answer.retry_after_s <= 10
        wait_s = max(answer.retry_after_s or 0 for answer in limited)
        await asyncio.sleep(wait_s)
        for door in doors:
            assert (await look(door)).code == "OK"

    async def test_lobby_operations_have_no_rate(self, scene: Scene, doors: Doors) -> None:
        lobby = await scene.attach("crowd")

        async def beat(door: Door) -> Answer:
            return await door.call("heartbeat", token=lobby.token)

        answers = await all_at_once(doors, beat, 600)
        assert {answer.code for answer in answers} == {"OK"}

    async def test_a_back_end_counts_by_its_token_and_attach_has_a_rate_of_its_own(
        self, scene: Scene, doors: Doors
    ) -> None:
        async def attach(door: Door) -> Answer:
            token = scene.plane.environment_token
            return await door.call("attach", attach_fields("crowd"), token=token)

        answers = await all_at_once(doors, attach, 600)
        codes = Counter(answer.code for answer in answers)
        assert set(codes) == {"OK", "RATE_LIMITED"}
        assert codes["OK"] >= 200
        # Neither the operator's bucket nor that of the address is the client bucket of the token.
        for token in (scene.plane.environment_token, scene.client_token):
            answer = await doors.http.call("list", token=token)
            assert answer.code == "OK"
