"""Malformed requests over both transports: each gets its code with all problems, and changes
nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.bad_rows import ATTACH, BOTH_TRANSPORTS, NO_LOBBY, PORTS, Row
from tests.faults.shared_plane import SharedPlane, check_problem
from tests.faults.unchanged_state import assert_unchanged
from tests.support.data_plane_clients import OPERATIONS, TransportResponse
from tests.support.killable_plane import GAME
from tests.support.lobby_setup import ApiSession

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]


@pytest.mark.parametrize("row", BOTH_TRANSPORTS, ids=lambda row: row.name)
async def test_invalid_request_returns_its_code_with_all_problems(
    shared: SharedPlane, row: Row
) -> None:
    async with assert_unchanged(shared.plane, shared.clients.http):
        for client in shared.clients:
            token = shared.tokens[row.token]
            answer = await client.call(row.operation, row.fields, token=token)
            assert answer.code == row.code, (client.name, answer)
            assert set(answer.errors) == row.errors, client.name
            assert len(answer.errors) == len(row.errors), client.name


WORDS = {"client": "pub", "env": "env", "lobby": "lobby", "player": "player"}
CLIENT = ("find", "create", "join", "list", "regions", "statistics")
LOBBY = ("connected", "disconnected", "ready", "closed", "set_state", "heartbeat")
PORT_OWNER = {
    **{operation: {"client", "env"} for operation in CLIENT},
    **{operation: {"lobby"} for operation in LOBBY},
    "get_state": {"lobby", "env"},
    "attach": {"env"},
    "detach": {"env"},
}


def minimal(operation: str, shared: SharedPlane) -> dict[str, Any]:
    fields: dict[str, dict[str, Any]] = {
        "find": {"game_modes": ["large"]},
        "create": {"game_mode": "large"},
        "join": {"lobby_id": shared.lobby.id},
        "connected": {"player_token": shared.player_token},
        "disconnected": {"player_token": shared.player_token},
        "closed": {"is_closed": True},
        "set_state": {"state": b"1"},
        "get_state": {"lobby_id": shared.lobby.id},
        "attach": {**ATTACH, "game_mode": "duel", "ports": PORTS},
        "detach": {"game_id": GAME, "lobby_id": shared.lobby.id},
    }
    return fields.get(operation, {})


def altered(token: str) -> str:
    """Changes the last but one character of a token, because the last character may have unused
    bits.
    """
    other = "A" if token[-2] != "A" else "B"
    return token[:-2] + other + token[-1]


# The secret of a channel has no token kind. The event tests cover its errors.
@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - {"live_events"}))
async def test_invalid_token_returns_its_code_and_changes_nothing(
    shared: SharedPlane, operation: str
) -> None:
    accepted_kinds = PORT_OWNER[operation]
    kind = min(accepted_kinds)
    wrong: dict[str | None, str] = {None: "TOKEN_MISSING"}
    for name in WORDS:
        token = shared.tokens[name]
        wrong[altered(token)] = "TOKEN_INVALID" if name in accepted_kinds else "FORBIDDEN"
        if name not in accepted_kinds:
            wrong[token] = "FORBIDDEN"
    good = shared.tokens[kind]
    wrong |= dict.fromkeys(
        (good[:-1], good + "A" * 160, good.upper(), good.replace("_", "-", 1), f"{good}=", "x"),
        "TOKEN_INVALID",
    )
    wrong["link_" + "A" * 40] = "FORBIDDEN"
    wrong["other_" + "A" * 40] = "TOKEN_INVALID"
    async with assert_unchanged(shared.plane, shared.clients.http):
        for client in shared.clients:
            for token_text, code in wrong.items():
                answer = await client.call(operation, minimal(operation, shared), token=token_text)
                assert answer.code == code, (client.name, token_text, answer)
                status = {"FORBIDDEN": ("403", "PERMISSION_DENIED")}
                assert answer.status in status.get(code, ("401", "UNAUTHENTICATED"))
                if client.name == "http" and code != "FORBIDDEN":
                    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.fast
async def test_token_of_another_lobby_does_not_change_the_slot(shared: SharedPlane) -> None:
    body = {"player_token": shared.player_token}
    other = shared.tokens["other lobby"]
    async with assert_unchanged(shared.plane, shared.clients.http):
        for client in shared.clients:
            for operation in ("connected", "disconnected"):
                for key in (None, f"wrong-{operation}"):
                    answer = await client.call(operation, body, token=other, key=key)
                    assert answer.code == "PLAYER_TOKEN_WRONG_LOBBY"
                    assert answer.status in ("403", "PERMISSION_DENIED")
            fields = {"player_tokens": [shared.player_token]}
            answer = await client.call("heartbeat", fields, token=other)
            assert answer.code == "BODY_INVALID"
            assert answer.errors == (("player_tokens", "0", "invalid"),)


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256, "tab\there"])
async def test_malformed_idempotency_key_is_a_header_error(shared: SharedPlane, key: str) -> None:
    async with assert_unchanged(shared.plane, shared.clients.http):
        body = json.dumps({"lobby_id": shared.lobby.id}).encode()
        headers = {"authorization": f"Bearer {shared.tokens['client']}", "idempotency-key": key}
        response = await shared.clients.http.request(
            "POST", "/matchmaker/lobbies/join", headers, body
        )
        check_problem(response, 400, "HEADER_INVALID")
        if key.isascii() and "\t" not in key:
            fields = {"lobby_id": shared.lobby.id}
            answer = await shared.clients.grpc.call(
                "join", fields, token=shared.tokens["client"], key=key
            )
            assert answer.code == "HEADER_INVALID", answer


async def test_key_reuse_with_another_message_is_refused(shared: SharedPlane) -> None:
    session = ApiSession(shared.plane, shared.clients.http, shared.tokens["client"])
    token, fields = shared.tokens["client"], {"lobby_id": shared.lobby.id}
    first: TransportResponse = await session.must("join", fields, token=token, key="reused")
    async with assert_unchanged(shared.plane, shared.clients.http):
        for client in shared.clients:
            repeat = await client.call("join", fields, token=token, key="reused")
            assert repeat.tokens == first.tokens
            for other in ({**fields, "party_size": 2}, {"lobby_id": NO_LOBBY}):
                answer = await client.call("join", other, token=token, key="reused")
                assert answer.code == "IDEMPOTENCY_KEY_REUSED", (client.name, answer)
                assert answer.status in ("422", "INVALID_ARGUMENT")
    await session.must("disconnected", {"player_token": first.tokens[0]}, token=shared.lobby.token)
