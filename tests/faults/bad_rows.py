"""Invalid requests that both transports can carry, with the error code and problems of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.killable_plane import GAME, NAMESPACE

NO_LOBBY = "0001aaaa-0000-4000-8000-000000000000"


@dataclass(frozen=True)
class Row:
    name: str
    operation: str
    token: str
    fields: dict[str, Any]
    code: str
    errors: frozenset[tuple[str, ...]] = frozenset()


def problems(*paths: str) -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(path.split("/")) for path in paths)


ATTACH = {"game_id": GAME, "namespace_id": NAMESPACE}
PORTS = {"game": {"address": "127.0.0.1", "port": 12000}}
BOTH_TRANSPORTS = (
    Row(
        "find without game modes",
        "find",
        "client",
        {},
        "BODY_INVALID",
        problems("game_modes/required"),
    ),
    Row(
        "find with every field invalid",
        "find",
        "client",
        {
            "game_modes": ["duel", "no mode", "x" * 65],
            "regions": ["UPPER"],
            "tags": {"": "v", "k": "v" * 513},
            "max_players": 0,
            "party_size": 65,
        },
        "BODY_INVALID",
        problems(
            "game_modes/1/invalid",
            "game_modes/2/too-long",
            "regions/0/invalid",
            "tags//too-short",
            "tags/k/too-long",
            "max_players/too-low",
            "party_size/too-high",
        ),
    ),
    Row(
        "find with a duplicate game mode",
        "find",
        "client",
        {"game_modes": ["duel", "duel"]},
        "BODY_INVALID",
        problems("game_modes/not-unique"),
    ),
    Row(
        "find with a party_size above every lobby limit",
        "find",
        "client",
        {"game_modes": ["duel"], "party_size": 9},
        "BODY_INVALID",
        problems("party_size/too-high"),
    ),
    Row(
        "find with a known and an unknown game mode",
        "find",
        "client",
        {"game_modes": ["duel", "nothing"]},
        "MATCHMAKER_GAME_MODE_NOT_FOUND",
    ),
    Row(
        "find with an unknown region",
        "find",
        "client",
        {"game_modes": ["duel"], "regions": ["nowhere"]},
        "MATCHMAKER_REGION_NOT_FOUND",
    ),
    Row(
        "find with max_players in a game mode that disables it",
        "find",
        "client",
        {"game_modes": ["duel"], "max_players": 2},
        "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
    ),
    Row(
        "find with a client address and a client token",
        "find",
        "client",
        {"game_modes": ["duel"], "client_address": "192.0.2.1"},
        "BODY_INVALID",
        problems("client_address/not-allowed"),
    ),
    Row(
        "find with an invalid client address",
        "find",
        "env",
        {"game_modes": ["duel"], "client_address": "192.0.2.256"},
        "BODY_INVALID",
        problems("client_address/invalid"),
    ),
    Row(
        "join without a lobby id",
        "join",
        "client",
        {},
        "BODY_INVALID",
        problems("lobby_id/required"),
    ),
    Row(
        "join with an invalid lobby id, a party and a rejoin token",
        "join",
        "client",
        {"lobby_id": "X", "party_size": 2, "rejoin_token": "player_x"},
        "BODY_INVALID",
        problems("lobby_id/invalid", "party_size/not-allowed"),
    ),
    Row(
        "join with an unknown lobby id",
        "join",
        "client",
        {"lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
    Row(
        "connected without a player token",
        "connected",
        "lobby",
        {},
        "BODY_INVALID",
        problems("player_token/required"),
    ),
    Row(
        "connected with an empty player token",
        "connected",
        "lobby",
        {"player_token": "player_"},
        "PLAYER_TOKEN_INVALID",
    ),
    Row(
        "connected with arbitrary text as player token",
        "connected",
        "lobby",
        {"player_token": "\u0000 é ' \" 🙂" * 40},
        "PLAYER_TOKEN_INVALID",
    ),
    Row(
        "disconnected with a forged token and a hold_ms above the limit",
        "disconnected",
        "lobby",
        {"player_token": "player_" + "A" * 57, "hold_ms": 600_001},
        "BODY_INVALID",
        problems("hold_ms/too-high"),
    ),
    Row(
        "disconnected with a forged token",
        "disconnected",
        "lobby",
        {"player_token": "player_" + "A" * 57},
        "PLAYER_TOKEN_INVALID",
    ),
    Row(
        "heartbeat with a forged token in its list",
        "heartbeat",
        "lobby",
        {"player_tokens": ["player_" + "A" * 57]},
        "BODY_INVALID",
        problems("player_tokens/0/invalid"),
    ),
    Row(
        "closed without is_closed",
        "closed",
        "lobby",
        {},
        "BODY_INVALID",
        problems("is_closed/required"),
    ),
    Row(
        "set_state with invalid JSON",
        "set_state",
        "lobby",
        {"state": b'{"a": NaN}'},
        "BODY_INVALID",
        problems("state/not-json"),
    ),
    Row(
        "set_state with too many nested arrays",
        "set_state",
        "lobby",
        {"state": b"[" * 65 + b"]" * 65},
        "BODY_INVALID",
        problems("state/too-deep"),
    ),
    Row(
        "set_state above the size limit",
        "set_state",
        "lobby",
        {"state": b'"%s"' % (b"x" * 65_535)},
        "BODY_TOO_LARGE",
    ),
    Row(
        "get_state with an invalid lobby id",
        "get_state",
        "env",
        {"lobby_id": "X"},
        "ID_INVALID",
        problems("lobby_id/invalid"),
    ),
    Row(
        "get_state with an unknown lobby id",
        "get_state",
        "env",
        {"lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
    Row(
        "attach with every field invalid",
        "attach",
        "env",
        {
            **ATTACH,
            "game_mode": "no mode",
            "region": "No",
            "ports": {"game": {"address": "a b", "port": 0}, "Other": {"address": "x", "port": 1}},
            "tags": {"": ""},
        },
        "BODY_INVALID",
        problems(
            "game_mode/invalid",
            "region/invalid",
            "ports/game/address/invalid",
            "ports/game/port/too-low",
            "ports/Other/invalid",
            "tags//too-short",
        ),
    ),
    Row(
        "attach with an unknown port and without a required one",
        "attach",
        "env",
        {**ATTACH, "game_mode": "duel", "ports": {"another": {"address": "::1", "port": 65_535}}},
        "BODY_INVALID",
        problems("ports/another/not-found", "ports/game/required"),
    ),
    Row(
        "attach with an unknown game mode",
        "attach",
        "env",
        {**ATTACH, "game_mode": "nothing", "ports": PORTS},
        "MATCHMAKER_GAME_MODE_NOT_FOUND",
    ),
    Row(
        "attach to a game outside the token's scope",
        "attach",
        "env",
        {**ATTACH, "game_id": "another", "game_mode": "duel", "ports": PORTS},
        "GAME_NOT_FOUND",
    ),
    Row(
        "attach to a namespace outside the token's scope",
        "attach",
        "env",
        {**ATTACH, "namespace_id": "staging", "game_mode": "duel", "ports": PORTS},
        "NAMESPACE_NOT_FOUND",
    ),
    Row(
        "attach with an invalid namespace id",
        "attach",
        "env",
        {**ATTACH, "namespace_id": "Prod!", "game_mode": "duel", "ports": PORTS},
        "ID_INVALID",
        problems("namespace_id/invalid"),
    ),
    Row(
        "detach with an unknown lobby id",
        "detach",
        "env",
        {"game_id": GAME, "lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
)
