"""Namespaces, attached lobbies and player tokens, created over the API before a measurement."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from bench.results import WrongAnswer
from bench.service import Service
from pyservice.storage import tables

MODE: Final = "hall"
PARTY: Final = 64
SLOTS: Final = 1_024
_HOUR_MS: Final = 3_600_000
_ANY_NUMBER: Final = 0xFFFF_FFFF
_REPORTED_S: Final = 30.0
_CONFIG: Final = {
    "matchmaker": {
        "game_modes": {
            MODE: {
                "max_players": SLOTS,
                "taggable": True,
                "listable": True,
                "player_token_ttl": _HOUR_MS,
                # These lobbies send no heartbeats.
                "heartbeat_timeout": _HOUR_MS,
                "docker": {"ports": {"game": {"protocol": "tcp"}}},
            }
        }
    }
}
_PORTS: Final = {"game": {"address": "127.0.0.1", "port": 7777}}


@dataclass(frozen=True, slots=True)
class Namespace:
    namespace_id: str
    service_token: str


@dataclass(frozen=True, slots=True)
class Lobby:
    namespace: Namespace
    lobby_id: str
    lobby_token: str


class Players:
    def __init__(self, service: Service, count: int = 1) -> None:
        self.service = service
        self._game_id = service.game("bench")
        self._attached = 0
        self.namespaces = self._namespaces(count)
        limits = {"lobby_count_max": _ANY_NUMBER, "max_players": _ANY_NUMBER}
        # All requests have one client address.
        self._all(
            "set_mm_config",
            [{"namespace_id": one.namespace_id} | limits for one in self.namespaces],
        )
        self.public = self.public_token()

    def public_token(self) -> str:
        """Creates a token for the players of the first namespace."""
        namespace = {"namespace_id": self.namespaces[0].namespace_id}
        (response,) = self._all("create_public_token", [namespace])
        return str(response["token"])

    def development_token(self) -> str:
        """Creates a token for mock responses in the first namespace."""
        fields = {"game_id": self._game_id, "namespace_id": self.namespaces[0].namespace_id}
        return str(self.service.call("create_development_token", fields)["token"])

    def _namespaces(self, count: int) -> Sequence[Namespace]:
        version_id = self.service.version(self._game_id, _CONFIG)
        responses = self._all(
            "create_namespace",
            [
                {"display_name": f"N{number}", "name_id": f"n{number}", "version_id": version_id}
                for number in range(count)
            ],
        )
        ids = [str(one["namespace_id"]) for one in responses]
        # The creation of a token waits at most one second for the data plane.
        self.service.wait_held()
        tokens = self._all("create_service_token", [{"environment_id": one} for one in ids])
        return [Namespace(id_, str(one["token"])) for id_, one in zip(ids, tokens, strict=True)]

    def attach(
        self, namespaces: Sequence[Namespace], tags: Iterable[dict[str, str]] = repeat({})
    ) -> list[Lobby]:
        """Attaches a lobby to each of the namespaces, with the next tags."""
        of_each = [
            {"namespace_id": one.namespace_id, "game_mode": MODE, "ports": _PORTS, "tags": own}
            for one, own in zip(namespaces, tags, strict=False)
        ]
        tokens = [one.service_token for one in namespaces]
        responses = self._all("attach", of_each, tokens)
        lobbies = [
            Lobby(namespace, str(one["lobby_id"]), str(one["lobby_token"]))
            for namespace, one in zip(namespaces, responses, strict=True)
        ]
        requests = [self.service.request("ready", token=one.lobby_token) for one in lobbies]
        self.service.call_all(requests)
        self._attached += len(lobbies)
        return lobbies

    def detach(self, lobbies: Sequence[Lobby]) -> None:
        tokens = [one.namespace.service_token for one in lobbies]
        self._all("detach", [{"lobby_id": one.lobby_id} for one in lobbies], tokens)

    def reserve(self, lobbies: Sequence[Lobby], slots: int) -> list[list[str]]:
        parties = [PARTY] * (slots // PARTY) + ([slots % PARTY] if slots % PARTY else [])
        parties_of_lobbies = [(number, size) for number in range(len(lobbies)) for size in parties]
        requests = [
            self.service.request(
                "join",
                {"lobby_id": lobbies[number].lobby_id, "party_size": size},
                token=lobbies[number].namespace.service_token,
            )
            for number, size in parties_of_lobbies
        ]
        tokens: list[list[str]] = [[] for _ in lobbies]
        for (number, size), answer in zip(
            parties_of_lobbies, self.service.call_all(requests), strict=True
        ):
            players = answer.get("players") or [answer["player"]]
            if len(players) != size:
                raise WrongAnswer(f"{len(players)} slots for a party of {size}")
            tokens[number] += [str(player["token"]) for player in players]
        return tokens

    def connected(self, namespace: Namespace) -> int:
        request = self.service.request("statistics", token=namespace.service_token)
        return int(self.service.call_all([request])[0]["player_count"])

    def check_recorded(self) -> None:
        end_s = time.monotonic() + _REPORTED_S
        while (recorded := self.service.count_of(tables.lobbies)) < self._attached:
            if time.monotonic() > end_s:
                raise WrongAnswer(f"{recorded} of {self._attached} lobbies are in the records")
            time.sleep(0.1)

    def _all(
        self, slug: str, of_each: Sequence[dict[str, Any]], tokens: Sequence[str] = ()
    ) -> list[Any]:
        callers = tokens or [self.service.token] * len(of_each)
        return self.service.call_all(
            [
                self.service.request(slug, {"game_id": self._game_id} | fields, token=token)
                for fields, token in zip(of_each, callers, strict=True)
            ]
        )
