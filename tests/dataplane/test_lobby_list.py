"""Memory of concurrent lobby lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pyservice.dataplane.lobby_list import LobbyList
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

pytestmark = pytest.mark.anyio

PARTS = 5


@dataclass
class Part:
    following: int | None
    count: int = 0
    is_full: bool = False
    json: bytes = b""
    lobbies: Sequence[object] = ()


@dataclass
class Source:
    """Gives each namespace a list of several parts, and notes how many lists are unfinished."""

    unfinished: set[bytes] = field(default_factory=set)
    most: int = 0

    def list_lobbies(
        self, namespace: bytes, _version: bytes, _modes: object, after: int, *_: object
    ) -> Part:
        self.unfinished.add(namespace)
        self.most = max(self.most, len(self.unfinished))
        if after < PARTS:
            return Part(after + 1)
        self.unfinished.remove(namespace)
        return Part(None)


async def test_few_lists_hold_their_parts_in_memory_at_once() -> None:
    source = Source()
    lobbies = LobbyList(source)  # type: ignore[arg-type]  # parts of the native module cannot be made here
    pages = [
        lobbies.page(pb.ListLobbiesResponse(), pb.ListLobbiesRequest(), bytes([number]), b"", ())
        for number in range(40)
    ]
    await asyncio.gather(*pages)
    assert 1 < source.most <= 8
