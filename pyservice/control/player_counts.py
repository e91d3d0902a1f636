"""Counts of connected players by namespace, at most a second old."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from pyservice.control.games import game_topic, group_topic
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.storage import lobbies
from pyservice.storage.database import Database
from pyservice.watch import Topics

_WAIT_MS: Final = 10_000
_FIRST_READ_TIMEOUT_S: Final = 2.0
_RETRIES_S: Final = (0.05, 0.5)
_NAMESPACES_PER_QUERY: Final = 500


class PlayerCounts:
    def __init__(self) -> None:
        self._players: dict[str, int] = {}

    def players(self, namespace_ids: Iterable[str]) -> int:
        return sum(self._players.get(namespace_id, 0) for namespace_id in namespace_ids)

    def update(self, players: Mapping[str, int], *, is_all: bool = False) -> list[str]:
        """Stores player counts by namespace id. Returns the namespaces with a changed count.

        With `is_all`, all other namespaces have no players.
        """
        counts = dict(players)
        if is_all:
            counts = {**dict.fromkeys(self._players, 0), **counts}
        changed_ids = [
            namespace_id
            for namespace_id, count in counts.items()
            if self._players.get(namespace_id, 0) != count
        ]
        for namespace_id, count in counts.items():
            if count:
                self._players[namespace_id] = count
            else:
                self._players.pop(namespace_id, None)
        return changed_ids


class CountsClient(Protocol):
    async def read_counts(self, request: pb.CountsRequest) -> pb.CountsResponse: ...


class PlayerCountReader:
    """Reads player counts from the data plane, and wakes the long polls of games with a changed
    count.

    Call `read_current` before the service accepts requests, then `run`.
    """

    def __init__(
        self, database: Database, client: CountsClient, counts: PlayerCounts, topics: Topics
    ) -> None:
        self._database = database
        self._client = client
        self._counts = counts
        self._topics = topics
        self._generation = 0
        # A namespace never changes its game, and a game never changes its group.
        self._topics_of: dict[str, tuple[str, str]] = {}
        self._unannounced: set[str] = set()
        self.job = RetryingJob(
            "counts", "counts not read", Unreachable, TimeoutError, pauses_s=_RETRIES_S
        )

    async def read_current(self) -> None:
        """Reads the current counts, so that the first responses have them. Returns after two
        seconds even without counts.
        """

        async def step() -> None:
            async with asyncio.timeout(_FIRST_READ_TIMEOUT_S):
                await self.step(0)

        await self.job.attempt(step)

    async def run(self) -> None:
        await self.job.repeat_forever(lambda: self.step(_WAIT_MS))

    async def step(self, wait_ms: int) -> None:
        request = pb.CountsRequest(
            after_generation=self._generation, wait_ms=0 if self._unannounced else wait_ms
        )
        response = await self._client.read_counts(request)
        players = {
            namespace.namespace_id: namespace.player_count for namespace in response.namespaces
        }
        self._unannounced.update(self._counts.update(players, is_all=response.is_all))
        self._generation = response.generation
        await self._report()

    async def _report(self) -> None:
        unknown = sorted(
            namespace_id
            for namespace_id in self._unannounced
            if namespace_id not in self._topics_of
        )
        for start in range(0, len(unknown), _NAMESPACES_PER_QUERY):
            async with self._database.read() as tx:
                rows = await lobbies.games_of_namespaces(
                    tx, unknown[start : start + _NAMESPACES_PER_QUERY]
                )
            for row in rows:
                topics = (game_topic(row.game_id), group_topic(row.group_id))
                self._topics_of[row.namespace_id] = topics
        self._topics.bump(
            *{
                topic
                for namespace_id in self._unannounced
                for topic in self._topics_of.get(namespace_id, ())
            }
        )
        self._unannounced.clear()
