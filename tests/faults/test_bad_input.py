"""Malformed requests over every transport: each gets its code with all problems, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.actors import Scene
from tests.faults.bad_rows import ATTACH, BOTH_DOORS, NO_LOBBY, PORTS, Row
from tests.faults.doors import OPERATIONS, Answer
from tests.faults.plane import GAME
from tests.faults.stage import Stage, check_problem
from tests.faults.stillness import nothing_changes

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@pytest.mark.parametrize("row", BOTH_DOORS, ids=lambda row: row.name)
async def test_a_wrong_request_gets_its_code_with_every_problem(stage: Stage, row: Row) -> None:
    async with nothing_changes(stage.plane, stage.doors.http):
        for door in stage.doors:
            token = stage.tokens[row.token]
            answer = await door.call(row.operation, row.fields, token=token)
            assert answer.code == row.code, (door.name, answer)
            assert set(answer.errors) == row.errors, door.name
            assert len(answer.errors) == len(row.errors), door.name


WORDS = {"client": "pub", "env": "env", "lobby": "lobby", "player": "player"}
CLIENT = ("find", "create", "join", "list", "regions", "statistics")
LOBBY = ("connected", "disconnected", "ready", "closed", "set_state", "heartbeat")
TAKEN_BY = {
    **{operation: {"client", "env"} for operation in CLIENT},
    **{operation: {"lobby"} for operation in LOBBY},
    "get_state": {"lobby", "env"},
    "attach": {"env"},
    "detach": {"env"},
}


def minimal(operation: str, stage: Stage) -> dict[str, Any]:
    """Fields that are right but for the token."""
    fields: dict[str, dict[str, Any]] = {
        "find": {"game_modes": ["crowd"]},
        "create": {"game_mode": "crowd"},
        "join": {"lobby_id": stage.lobby.id},
        "connected": {"player_token": stage.player_token},
        "disconnected": {"player_token": stage.player_token},
        "closed": {"is_closed": True},
        "set_state": {"state": b"1"},
        "get_state": {"lobby_id": stage.lobby.id},
        "attach": {**ATTACH, "game_mode": "duel", "ports": PORTS},
        "detach": {"game_id": GAME, "lobby_id": stage.lobby.id},
    }
    return fields.get(operation, {})


def altered(token: str) -> str:
    """The same with its last character but one another one: the last may carry unused bits."""
    other = "A" if token[-2] != "A" else "B"
    return token[:-2] + other + token[-1]


# The secret of a channel has no kind: tests of events have its refusals.
@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - {"live_events"}))
async def test_a_wrong_token_gets_its_code_and_changes_nothing(
    stage: Stage, operation: str
) -> None:
    taken = TAKEN_BY[operation]
    kind = min(taken)
    wrong: dict[str | None, str] = {None: "TOKEN_MISSING"}
    for name in WORDS:
        token = stage.tokens[name]
        wrong[altered(token)] = "TOKEN_INVALID" if name in taken else "FORBIDDEN"
        if name not in taken:
            wrong[token] = "FORBIDDEN"
    good = stage.tokens[kind]
    wrong |= dict.fromkeys(
        (good[:-1], good + "A" * 160, good.upper(), good.replace("_", "-", 1), f"{good}=", "x"),
        "TOKEN_INVALID",
    )
    wrong["link_" + "A" * 40] = "FORBIDDEN"
    wrong["other_" + "A" * 40] = "TOKEN_INVALID"
    async with nothing_changes(stage.plane, stage.doors.http):
        for door in stage.doors:
            for shown, code in wrong.items():
                answer = await door.call(operation, minimal(operation, stage), token=shown)
                assert answer.code == code, (door.name, shown, answer)
                status = {"FORBIDDEN": ("403", "PERMISSION_DENIED")}
                assert answer.status in status.get(code, ("401", "UNAUTHENTICATED"))
                if door.name == "http" and code != "FORBIDDEN":
                    assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_token_of_another_lobby_leaves_the_slot_of_the_player_alone(stage: Stage) -> None:
    body = {"player_token": stage.player_token}
    other = stage.tokens["other lobby"]
    async with nothing_changes(stage.plane, stage.doors.http):
        for door in stage.doors:
            for operation in ("connected", "disconnected"):
                for key in (None, f"wrong-{operation}"):
                    answer = await door.call(operation, body, token=other, key=key)
                    assert answer.code == "PLAYER_TOKEN_WRONG_LOBBY"
                    assert answer.status in ("403", "PERMISSION_DENIED")
            fields = {"player_tokens": [stage.player_token]}
            answer = await door.call("heartbeat", fields, token=other)
            assert answer.code == "BODY_INVALID"
            assert answer.errors == (("player_tokens", "0", "invalid"),)


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256, "tab\there"])
async def test_a_key_of_the_wrong_form_is_a_wrong_header(stage: Stage, key: str) -> None:
    async with nothing_changes(stage.plane, stage.doors.http):
        body = json.dumps({"lobby_id": stage.lobby.id}).encode()
        headers = {"authorization": f"Bearer {stage.tokens['client']}", "idempotency-key": key}
        response = await stage.doors.http.request("POST", "/matchmaker/lobbies/join", headers, body)
        check_problem(response, 400, "HEADER_INVALID")
        if key.isascii() and "\t" not in key:
            fields = {"lobby_id": stage.lobby.id}
            answer = await stage.doors.grpc.call(
                "join", fields, token=stage.tokens["client"], key=key
            )
            assert answer.code == "HEADER_INVALID", answer


async def test_a_key_with_another_message_is_refused_and_the_first_answer_stays(
    stage: Stage,
) -> None:
    scene = Scene(stage.plane, stage.doors.http, stage.tokens["client"])
    token, fields = stage.tokens["client"], {"lobby_id": stage.lobby.id}
    first: Answer = await scene.must("join", fields, token=token, key="reused")
    async with nothing_changes(stage.plane, stage.doors.http):
        for door in stage.doors:
            again = await door.call("join", fields, token=token, key="reused")
            assert again.tokens == first.tokens
            for other in ({**fields, "party_size": 2}, {"lobby_id": NO_LOBBY}):
                answer = await door.call("join", other, token=token, key="reused")
                assert answer.code == "IDEMPOTENCY_KEY_REUSED", (door.name, answer)
                assert answer.status in ("422", "INVALID_ARGUMENT")
    await scene.must("disconnected", {"player_token": first.tokens[0]}, token=stage.lobby.token)
