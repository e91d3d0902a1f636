"""Random calls of the five operations that the front answers, from usual to malformed, for HTTP and gRPC.

The calls have names of `tests/support/twin.py` in place of ids and tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from urllib.parse import quote, urlencode

from pyservice.edge.http_json_codec import decoder
from pyservice.schema.methods import METHODS, Method
from tests.support.generated_requests import (
    ADDRESSES,
    GAME_MODES,
    ID_SPELLINGS,
    LIVE_LOBBIES,
    ODD_GAME_MODES,
    ODD_REGIONS,
    OTHER_LOBBIES,
    PATHS,
    PLACEMENTS,
    REGIONS,
    TOKEN_SPELLINGS,
    TRACE_ID,
    UNKNOWN_ID,
)

METHOD_OF: Final[dict[str, Method]] = {method.slug: method for method in METHODS.values()}

CHANGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "unknown field": lambda data: data + b"\xfa\x3f\x03new",
    "repeated message": lambda data: data + data,
    "repeated text": lambda data: data + b"\x0a\x00",
    "number for a text": lambda data: data + b"\x08\x01",
    "cut": lambda data: data[:-1],
    "group": lambda data: data + b"\xfb\x3f\xfc\x3f",
    "invalid text": lambda data: data + b"\x0a\x01\xff",
    "junk": lambda data: data + b"\xff",
    "long number": lambda data: data + b"\x20\x81\x80\x00",
}
"""Unusual encodings of a message."""

_METADATA: Final = (
    ("idempotency-key", "key-1"),
    ("idempotency-key", "a b"),
    ("origin", "https://<<own.domain>>"),
    ("traceparent", f"00-{TRACE_ID}-b7ad6b7169203331-01"),
    ("traceparent", "00-0"),
    ("x-forwarded-for", "192.0.2.7"),
    ("x-hosting-client", "192.0.2.7"),
    ("x-hosting-repeat", "expired"),
    ("x-coords", "10.0,20.0"),
    ("accept-language", "de"),
)
_EXTRA_FIELDS: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    "join": (
        {"rejoin_token": ""},
        {"event_channels": ["a" * 24]},
        {"captcha": {}},
        {"verification_data": b"{}"},
    ),
    "find": (
        {"tags": {"a": "b"}},
        {"max_players": 3},
        {"captcha": {"captcha_a": {}}},
        {"event_channels": ["a" * 24]},
    ),
}


@dataclass(frozen=True, slots=True)
class GeneratedCall:
    operation: str
    fields: dict[str, Any]
    """Fields of the message, with names."""
    metadata: tuple[tuple[str, str], ...]
    change: str | None = None

    def message(self, fill: Callable[[bytes], bytes]) -> bytes:
        fields = _filled(self.fields, fill)
        if "player_tokens" in fields:
            fields["player_tokens"] = {"tokens": fields["player_tokens"]}
        config = fields.pop("config", None)
        message: Any = METHOD_OF[self.operation].request(**fields)
        if config is not None:
            message.config.CopyFrom(_message_of_config(config))
        data = message.SerializeToString(deterministic=True)
        return CHANGES[self.change](data) if self.change else data

    def http_parts(self, fill: Callable[[bytes], bytes]) -> tuple[str, str, bytes]:
        """Returns method, target and body of the same request over HTTP."""
        method, fields = METHOD_OF[self.operation], _filled(self.fields, fill)
        path = {name: fields.pop(name) for name in method.path_fields}
        if "verification_data" in fields:
            fields["verification_data"] = json.loads(fields["verification_data"])
        quoted = {name: quote(value, safe="") for name, value in path.items()}
        target = method.template.format(**quoted)
        if method.body_field:
            whole = fields.get(method.body_field)
            body = whole if isinstance(whole, bytes) else json.dumps(fields).encode()
            return method.http_method, target, body
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in fields.items()
        }
        return method.http_method, f"{target}?{urlencode(texts)}" if texts else target, b""

    def filled_metadata(self, fill: Callable[[bytes], bytes]) -> list[tuple[str, str]]:
        return [(name, fill(value.encode()).decode()) for name, value in self.metadata]


def _message_of_config(config: Any) -> Any:
    """The JSON of a configuration is not that of protobuf, which has wrappers around its maps."""
    method = METHOD_OF["validate_version"]
    decode: Any = decoder(method)
    message, _ = decode(json.dumps({"config": config}).encode(), b"", {"game_id": ""})
    return message.config


def _filled(value: Any, fill: Callable[[bytes], bytes]) -> Any:
    match value:
        case str():
            return fill(value.encode()).decode()
        case list():
            return [_filled(one, fill) for one in value]
        case dict():
            return {name: _filled(one, fill) for name, one in value.items()}
        case _:
            return value


class CallGenerator:
    def __init__(
        self, seed: int, players: Sequence[tuple[str, str]], *, changes_percent: int = 0
    ) -> None:
        """`players` has the name and the lobby of each player token. It may change between draws.

        `changes_percent` of the calls have an encoding that exists in protobuf alone.
        """
        self._random = Random(seed)
        self._players = players
        self._changes_percent = changes_percent

    def draw(self) -> GeneratedCall:
        """Returns a usual call, or one with some unusual parts."""
        operation = self._random.choice(tuple(PATHS))
        lobby = self._random.choice(LIVE_LOBBIES if self._is(80) else OTHER_LOBBIES)
        is_odd = self._is(30)
        fields = self._fields(operation, lobby, is_odd)
        if is_odd and self._is(40) and operation in _EXTRA_FIELDS:
            fields |= self._random.choice(_EXTRA_FIELDS[operation])
        metadata = [("authorization", self._authorization(operation, lobby))]
        if self._is(15):
            metadata.append(self._random.choice(_METADATA))
        if self._is(2):
            metadata.clear()
        change = self._random.choice(tuple(CHANGES)) if self._is(self._changes_percent) else None
        return GeneratedCall(operation, fields, tuple(metadata), change)

    def _is(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _authorization(self, operation: str, lobby: str) -> str:
        if operation in PLACEMENTS:
            names = ["own.env", "own.env", "own.pub", "own.pub"]
            others = ["own.expired", "own.revoked", "far.env", "far.pub", f"{lobby}.token"]
        else:
            names = [f"{lobby}.token"]
            others = ["lobby-1.token", "far-lobby.token", "ended.token", "own.env", "own.pub"]
        name = self._random.choice(others if self._is(8) else names)
        spelling = f"|{self._random.choice(TOKEN_SPELLINGS)}" if self._is(4) else ""
        scheme = (
            self._random.choice(("bearer ", "Basic ", "Bearer  ")) if self._is(3) else "Bearer "
        )
        return f"{scheme}<<{name}{spelling}>>"

    def _player(self, lobby: str, is_odd: bool) -> str:
        names = [name for name, of in self._players if of == lobby]
        if not names or self._is(10):
            names = [name for name, _ in self._players]
        name = self._random.choice(names[-6:] if self._is(70) else names)
        if is_odd and self._is(50):
            return f"<<{name}|{self._random.choice(TOKEN_SPELLINGS)}>>"
        return f"<<{name}>>"

    def _fields(self, operation: str, lobby: str, is_odd: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        match operation:
            case "connected":
                fields["player_token"] = self._player(lobby, is_odd)
            case "disconnected":
                fields["player_token"] = self._player(lobby, is_odd)
                if self._is(50):
                    fields["hold_ms"] = self._random.choice((0, 1, 600_000, 600_001, 2**32 - 1))
            case "heartbeat":
                if self._is(70):
                    count = self._random.choice((0, 1, 3, 20))
                    tokens = [self._player(lobby, is_odd) for _ in range(count)]
                    fields["player_tokens"] = tokens
            case "join":
                fields["lobby_id"] = f"<<{lobby}.id>>"
                if is_odd and self._is(30):
                    spelling = self._random.choice(ID_SPELLINGS)
                    fields["lobby_id"] = self._random.choice(
                        (UNKNOWN_ID, "", f"<<{lobby}.id|{spelling}>>")
                    )
                fields |= self._party(is_odd)
            case _:
                modes = ODD_GAME_MODES if is_odd else GAME_MODES
                count = self._random.choice((1, 1, 1, 2, 3, 0 if is_odd else 1))
                fields["game_modes"] = self._random.choices(modes, k=count)
                if self._is(50):
                    regions = ODD_REGIONS if is_odd else REGIONS
                    fields["regions"] = self._random.choices(regions, k=self._random.choice((1, 2)))
                if self._is(30):
                    fields["prevent_auto_create_lobby"] = self._is(50)
                fields |= self._party(is_odd)
        return fields

    def _party(self, is_odd: bool) -> dict[str, Any]:
        party: dict[str, Any] = {}
        if self._is(40):
            sizes = (0, 1, 2, 64, 65, 2**32 - 1) if is_odd else (1, 2, 3)
            party["party_size"] = self._random.choice(sizes)
        if self._is(30):
            party["client_address"] = self._random.choice(ADDRESSES)
        return party
