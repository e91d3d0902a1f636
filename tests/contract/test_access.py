"""Access of token kinds to operations, and errors of attach, over both transports."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Game
from tests.faults.plane import GAME, NAMESPACE, Plane
from tests.faults.transports import Transport

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"game_mode": "nothing"}, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        ({"region": "nowhere"}, "MATCHMAKER_REGION_NOT_FOUND"),
        ({"game_mode": "elsewhere", "region": "local"}, "MATCHMAKER_REGION_NOT_ENABLED"),
        ({"game_mode": "ranged"}, "BODY_INVALID"),
        ({"ports": {}}, "BODY_INVALID"),
        ({"ports": {"other": {"address": "127.0.0.1", "port": 1}}}, "BODY_INVALID"),
        ({"game_id": "no-such-game"}, "GAME_NOT_FOUND"),
        ({"namespace_id": "nowhere"}, "NAMESPACE_NOT_FOUND"),
    ],
)
async def test_attach_returns_a_code_for_each_obstacle(
    game: Game, change: dict[str, object], code: str
) -> None:
    ports = {"game": {"address": "127.0.0.1", "port": 7777}}
    desired = {"game_id": GAME, "namespace_id": NAMESPACE, "game_mode": "duel", "ports": ports}
    assert (await game.back_end("attach", {**desired, **change})).code == code


CLIENT = ("find", "create", "join", "list", "regions", "statistics")
SERVER = ("connected", "disconnected", "ready", "closed", "set_state", "heartbeat")
OPERATOR = ("attach", "detach")
SHAPES: dict[str, dict[str, object]] = {
    "find": {"game_modes": ["duel"]},
    "create": {"game_mode": "duel"},
    "join": {"lobby_id": "00010000-0000-4000-8000-000000000000"},
    "connected": {"player_token": "player_x"},
    "disconnected": {"player_token": "player_x"},
    "closed": {"is_closed": True},
    "set_state": {"state": b"1"},
    "get_state": {"lobby_id": "00010000-0000-4000-8000-000000000000"},
    "attach": {"game_id": GAME, "namespace_id": NAMESPACE, "game_mode": "duel", "ports": {}},
    "detach": {"game_id": GAME, "lobby_id": "00010000-0000-4000-8000-000000000000"},
}


@pytest.mark.parametrize("operation", [*CLIENT, *SERVER, *OPERATOR, "get_state"])
async def test_every_operation_requires_a_token_of_its_kind(
    game: Game, transport: Transport, plane: Plane, operation: str
) -> None:
    fields = SHAPES.get(operation, {})
    lobby = await game.attach("duel")
    missing = await transport.call(operation, fields)
    assert missing.code == "TOKEN_MISSING"
    nonsense = await transport.call(operation, fields, token="pub_nonsense")
    assert nonsense.code in ("TOKEN_INVALID", "FORBIDDEN")
    wrong = {
        **dict.fromkeys(CLIENT, lobby.token),
        **dict.fromkeys(SERVER, game.public_token),
        **dict.fromkeys(OPERATOR, game.public_token),
        "get_state": game.public_token,
    }[operation]
    assert (await transport.call(operation, fields, token=wrong)).code == "FORBIDDEN"
