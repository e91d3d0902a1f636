"""Invalid requests that both transports can carry, with the error code and problems of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.faults.plane import GAME, NAMESPACE

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
        "find without modes", "find", "client", {}, "BODY_INVALID", problems("game_modes/required")
    ),
    Row(
        "find with everything wrong",
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
        "find with a mode twice",
        "find",
        "client",
        {"game_modes": ["duel", "duel"]},
        "BODY_INVALID",
        problems("game_modes/not-unique"),
    ),
    Row(
        "find for a party that no limit takes",
        "find",
        "client",
        {"game_modes": ["duel"], "party_size": 9},
        "BODY_INVALID",
        problems("party_size/too-high"),
    ),
    Row(
        "find in an unknown mode beside a known one",
        "find",
        "client",
        {"game_modes": ["duel", "nothing"]},
        "MATCHMAKER_GAME_MODE_NOT_FOUND",
    ),
    Row(
        "find in an unknown region",
        "find",
        "client",
        {"game_modes": ["duel"], "regions": ["nowhere"]},
        "MATCHMAKER_REGION_NOT_FOUND",
    ),
    Row(
        "find with max_players where that is off",
        "find",
        "client",
        {"game_modes": ["duel"], "max_players": 2},
        "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
    ),
    Row(
        "find with a client address",
        "find",
        "client",
        {"game_modes": ["duel"], "client_address": "192.0.2.1"},
        "BODY_INVALID",
        problems("client_address/not-allowed"),
    ),
    Row(
        "find with a wrong address",
        "find",
        "env",
        {"game_modes": ["duel"], "client_address": "192.0.2.256"},
        "BODY_INVALID",
        problems("client_address/invalid"),
    ),
    Row("join without lobby", "join", "client", {}, "BODY_INVALID", problems("lobby_id/required")),
    Row(
        "join with an id that is none, and a party that rejoins",
        "join",
        "client",
        {"lobby_id": "X", "party_size": 2, "rejoin_token": "player_x"},
        "BODY_INVALID",
        problems("lobby_id/invalid", "party_size/not-allowed"),
    ),
    Row(
        "join a lobby that never was",
        "join",
        "client",
        {"lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
    Row(
        "connected without token",
        "connected",
        "lobby",
        {},
        "BODY_INVALID",
        problems("player_token/required"),
    ),
    Row(
        "connected with what is no token",
        "connected",
        "lobby",
        {"player_token": "player_"},
        "PLAYER_TOKEN_INVALID",
    ),
    Row(
        "connected with text of any kind",
        "connected",
        "lobby",
        {"player_token": "\u0000 é ' \" 🙂" * 40},
        "PLAYER_TOKEN_INVALID",
    ),
    Row(
        "disconnected with a forged token and a hold too long",
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
        "closed without saying which",
        "closed",
        "lobby",
        {},
        "BODY_INVALID",
        problems("is_closed/required"),
    ),
    Row(
        "a state that is not JSON",
        "set_state",
        "lobby",
        {"state": b'{"a": NaN}'},
        "BODY_INVALID",
        problems("state/not-json"),
    ),
    Row(
        "a state that is too deep",
        "set_state",
        "lobby",
        {"state": b"[" * 65 + b"]" * 65},
        "BODY_INVALID",
        problems("state/too-deep"),
    ),
    Row(
        "a state that is too large",
        "set_state",
        "lobby",
        {"state": b'"%s"' % (b"x" * 65_535)},
        "BODY_TOO_LARGE",
    ),
    Row(
        "state of what is no id",
        "get_state",
        "env",
        {"lobby_id": "X"},
        "ID_INVALID",
        problems("lobby_id/invalid"),
    ),
    Row(
        "state of a lobby that never was",
        "get_state",
        "env",
        {"lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
    Row(
        "attach with everything wrong",
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
        "attach with the wrong ports",
        "attach",
        "env",
        {**ATTACH, "game_mode": "duel", "ports": {"another": {"address": "::1", "port": 65_535}}},
        "BODY_INVALID",
        problems("ports/another/not-found", "ports/game/required"),
    ),
    Row(
        "attach in an unknown mode",
        "attach",
        "env",
        {**ATTACH, "game_mode": "nothing", "ports": PORTS},
        "MATCHMAKER_GAME_MODE_NOT_FOUND",
    ),
    Row(
        "attach in a game that is not visible",
        "attach",
        "env",
        {**ATTACH, "game_id": "another", "game_mode": "duel", "ports": PORTS},
        "GAME_NOT_FOUND",
    ),
    Row(
        "attach in a namespace that is not visible",
        "attach",
        "env",
        {**ATTACH, "namespace_id": "staging", "game_mode": "duel", "ports": PORTS},
        "NAMESPACE_NOT_FOUND",
    ),
    Row(
        "attach in what is no namespace",
        "attach",
        "env",
        {**ATTACH, "namespace_id": "Prod!", "game_mode": "duel", "ports": PORTS},
        "ID_INVALID",
        problems("namespace_id/invalid"),
    ),
    Row(
        "detach a lobby that never was",
        "detach",
        "env",
        {"game_id": GAME, "lobby_id": NO_LOBBY},
        "MATCHMAKER_LOBBY_NOT_FOUND",
    ),
)
