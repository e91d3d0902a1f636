"""Twins: clients of equal states with different ids and tokens.

A request to all twins is written once, with names in place of ids and tokens: `<<lobby-1.token>>`.
Each twin replaces the names by its own values, and the ids in its responses by names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.support.data_plane_clients import PlaneHttpClient

UUID: Final = re.compile(rb"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_NAME: Final = re.compile(rb"<<([a-z0-9.-]+)(?:\|([a-z]+))?>>")
_PLAYER_TOKEN: Final = re.compile(rb"player_[A-Za-z0-9_-]{24,}")
_MIDDLE: Final = 20

SPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "upper": str.upper,
    "braced": lambda value: f"{{{value}}}",
    "plain": lambda value: value.replace("-", ""),
    "urn": lambda value: f"urn:uuid:{value}",
    "cut": lambda value: value[:-1],
    "longer": lambda value: f"{value}A",
    "escaped": lambda value: f"\\u{ord(value[0]):04x}{value[1:]}",
    "tampered": lambda value: _changed(value, _MIDDLE),
    "ending": lambda value: _changed(value, len(value) - 1),
}
"""Other spellings of a value: `<<lobby-1.id|upper>>`."""


def _changed(value: str, at: int) -> str:
    return value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]


@dataclass(kw_only=True)
class Twin:
    """One of the twins, with the values of the names."""

    name: str
    client: PlaneHttpClient
    values: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: str) -> None:
        self.values[name] = value
        self._names[value] = name

    def fill(self, template: bytes) -> bytes:
        """Replaces the names in a request by values."""

        def value(match: re.Match[bytes]) -> bytes:
            text = self.values[match[1].decode()]
            return (SPELLINGS[match[2].decode()](text) if match[2] else text).encode()

        return _NAME.sub(value, template)

    def with_names(self, body: bytes) -> bytes:
        """Replaces the ids in a response by names, and the player tokens by one word."""

        def name(match: re.Match[bytes]) -> bytes:
            return self.name_of(match[0].decode()).encode()

        return _PLAYER_TOKEN.sub(b"player token", UUID.sub(name, body))

    def name_of(self, value: str) -> str:
        """Returns the value itself if it has no name."""
        return self._names.get(value.lower(), value)


def player_tokens(body: bytes) -> list[str]:
    """Returns the distinct player tokens of a response."""
    return list(dict.fromkeys(token.decode() for token in _PLAYER_TOKEN.findall(body)))
