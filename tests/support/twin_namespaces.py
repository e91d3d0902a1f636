"""Namespaces in equal states, the twins, on one or more data planes. Each has a neighbor, which is another namespace.

The requests have the names of `tests/support/twin.py`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from tests.support.data_plane_clients import TransportResponse
from tests.support.killable_plane import GAME, Plane, feed
from tests.support.lobby_setup import attach_fields
from tests.support.twin import Twin, player_tokens
from tests.support.waiting import eventually

ROLES: Final = ("own", "far")
"""The twin itself, and its neighbor."""
REGIONS: Final = ("local", "west", "east")
MODES: Final[dict[str, dict[str, Any]]] = {
    "hall": {"max_players": 5_000},
    "small": {"max_players": 2, "max_players_party": 3},
    "western": {"max_players": 500, "regions": {"west": {}}},
    "unfindable": {"max_players": 500, "actions": {"find": {"enabled": False}}},
    "unjoinable": {"max_players": 500, "actions": {"join": {"enabled": False}}},
}
LOBBIES: Final = {
    "lobby-1": ("own", "hall", "local"),
    "lobby-2": ("own", "hall", "west"),
    "lobby-3": ("own", "western", "west"),
    "lobby-4": ("own", "small", "local"),
    "lobby-5": ("own", "small", "west"),
    "lobby-6": ("own", "unfindable", "local"),
    "unjoinable": ("own", "unjoinable", "local"),
    "closed": ("own", "hall", "local"),
    "ended": ("own", "hall", "local"),
    "far-lobby": ("far", "hall", "local"),
}
"""Role of the namespace, game mode and region of each lobby."""
FIRST_PLAYERS: Final = {
    "lobby-1": 12,
    "lobby-2": 6,
    "lobby-3": 4,
    "lobby-4": 1,
    "lobby-6": 4,
    "ended": 2,
    "far-lobby": 2,
}
FAR_SOURCE_LIMIT: Final = 3
"""Slots of one client address in a neighbor."""
SLOT_STATES: Final = ("free", "held", "reserved", "connected", "kept")
SETTINGS: Final[dict[str, Any]] = {
    "player_limit_max": 65_535,
    "regions": [{"name_id": name, "region_display_name": name.title()} for name in REGIONS],
}

_TOKEN_TTL_MS: Final = 3_600_000


@dataclass(kw_only=True)
class NamespaceTwin(Twin):
    """One of the namespaces, with its neighbor."""

    plane: Plane

    def with_names(self, body: bytes) -> bytes:
        return super().with_names(body).replace(f"{GAME}/{self.name}-".encode(), b"")

    async def must(self, operation: str, fields: Any, token: str) -> TransportResponse:
        answer = await self.client.call(operation, fields, token=self.values[token])
        assert answer.code == "OK", answer
        return answer

    async def attach(self, lobby: str) -> None:
        role, mode, region = LOBBIES[lobby]
        port = {"address": "2001:db8::7", "port": 12_000}
        ports = {"game": port, "web": {"address": "game.example.com", "port": 443}}
        fields = attach_fields(mode, ports=ports, region=region)
        fields["namespace_id"] = f"{self.name}-{role}"
        answer = await self.must("attach", fields, f"{role}.env")
        self.put(f"{lobby}.id", answer.body["lobby_id"])
        self.put(f"{lobby}.token", answer.body["lobby_token"])
        await self.must("ready", None, f"{lobby}.token")

    async def detach(self, lobby: str) -> None:
        fields = {"game_id": GAME, "lobby_id": self.values[f"{lobby}.id"]}
        await self.must("detach", fields, f"{LOBBIES[lobby][0]}.env")

    async def join(self, lobby: str, count: int) -> list[str]:
        fields = {"lobby_id": self.values[f"{lobby}.id"], "party_size": count}
        return (await self.must("join", fields, f"{LOBBIES[lobby][0]}.env")).tokens


class TwinNamespaces:
    """All twins, and the names that exist in them."""

    def __init__(self, twins: list[NamespaceTwin]) -> None:
        self.twins = twins
        self.players: list[tuple[str, str]] = []
        """Name and lobby of each player token, the oldest first."""
        self._player_count = 0

    async def renew(self) -> None:
        """Replaces all lobbies, the free ones and the full ones."""
        self.players.clear()
        joined = await asyncio.gather(*map(_renew, self.twins))
        for lobby in FIRST_PLAYERS:
            self._add_players(lobby, [players[lobby] for players in joined])

    def add_placed_players(self, bodies: Sequence[bytes]) -> None:
        """Adds the players that the twins have answered to find or join, in JSON."""
        lobby_id = json.loads(bodies[0])["lobby"]["lobby_id"]
        lobby = self.twins[0].name_of(lobby_id).removesuffix(".id")
        self._add_players(lobby, [player_tokens(body) for body in bodies])

    def _add_players(self, lobby: str, tokens: list[list[str]]) -> None:
        for values in zip(*tokens, strict=True):
            name = f"player-{self._player_count}"
            self._player_count += 1
            self.players.append((name, lobby))
            for twin, value in zip(self.twins, values, strict=True):
                twin.put(name, value)

    async def slots(self) -> list[dict[str, float]]:
        """Returns for each twin the number of slots by role and state."""
        return [
            {
                f"{role} {state}": await twin.plane.metric(
                    "hosting_slots", namespace=f"{GAME}/{twin.name}-{role}", state=state
                )
                for role in ROLES
                for state in SLOT_STATES
            }
            for twin in self.twins
        ]


async def _renew(twin: NamespaceTwin) -> dict[str, list[str]]:
    """Returns the player tokens of each lobby."""
    for lobby in LOBBIES:
        if f"{lobby}.id" in twin.values:
            await twin.detach(lobby)
        await twin.attach(lobby)
    players = {lobby: await twin.join(lobby, count) for lobby, count in FIRST_PLAYERS.items()}
    await twin.must("closed", {"is_closed": True}, "closed.token")
    await twin.detach("ended")
    return players


async def start_twins(planes: Mapping[str, Plane]) -> TwinNamespaces:
    """Starts the planes of the twins. A plane may have several."""
    twins: list[NamespaceTwin] = []
    for plane in dict.fromkeys(planes.values()):
        names = [name for name, of in planes.items() if of is plane]
        twins += await _start_twins(plane, names)
    return TwinNamespaces(twins)


async def _start_twins(plane: Plane, names: list[str]) -> list[NamespaceTwin]:
    service_tokens = {(twin, role): _service_tokens() for twin in names for role in ROLES}
    game = feed({}, "", {})["namespaces"][0]["game"]
    namespaces = [
        _namespace(game, twin, role, list(tokens.values()))
        for (twin, role), tokens in service_tokens.items()
    ]
    plane.feed_file.write_text(json.dumps({"namespaces": namespaces}))
    await plane.start()
    twins = [NamespaceTwin(name=name, client=plane.http_client(), plane=plane) for name in names]
    for twin, role, namespace in zip(
        (twin for twin in twins for _ in ROLES), ROLES * len(twins), namespaces, strict=True
    ):
        for name, (token, _) in service_tokens[twin.name, role].items():
            twin.put(f"{role}.{name}", token)
        label = f"{twin.name}-{role}"
        twin.put(f"{role}.domain", namespace["access"]["domains"][0])
        twin.put(f"{role}.pub", (await plane.new_public_token(label))[0])
        revoked, token_id = await plane.new_public_token(label)
        twin.put(f"{role}.revoked", revoked)
        namespace["revoked_token_ids"] = [token_id]
        namespace["revision"] += 1
    plane.feed_file.write_text(json.dumps({"namespaces": namespaces}))
    plane.process_signal(signal.SIGHUP)
    for twin in twins:
        for role in ROLES:
            await _until_revoked(twin, f"{role}.revoked")
    return twins


def _service_tokens() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns tokens with their entries in the feed."""
    expiries: dict[str, dict[str, int]] = {"env": {}, "expired": {"expires_ms": 1}}
    tokens = {name: f"env_{secrets.token_urlsafe(32)}" for name in expiries}
    return {
        name: (
            token,
            {
                "token_id": str(uuid4()),
                "sha256": base64.b64encode(hashlib.sha256(token.encode()).digest()).decode(),
                **expiries[name],
            },
        )
        for name, token in tokens.items()
    }


def _namespace(
    game: Any, twin: str, role: str, tokens: list[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    limits = {
        "lobby_count_max": 10_000,
        "max_players": FAR_SOURCE_LIMIT if role == "far" else 4_294_967_295,
    }
    ports = {"game": {"protocol": "tcp"}, "web": {"protocol": "https"}}
    modes = {
        name: {"player_token_ttl": _TOKEN_TTL_MS, "docker": {"ports": ports}, **mode}
        for name, mode in MODES.items()
    }
    (namespace,) = feed(modes, "", limits)["namespaces"]
    return {
        **namespace,
        "game": game,
        "name_id": f"{twin}-{role}",
        "access": {"domains": [f"{twin}.{role}.example.com"]},
        "environment_tokens": [entry for _, entry in tokens],
    }


async def _until_revoked(twin: NamespaceTwin, name: str) -> None:
    async def is_revoked() -> bool:
        answer = await twin.client.call("list", token=twin.values[name])
        return answer.code == "TOKEN_REVOKED"

    await eventually(is_revoked)
