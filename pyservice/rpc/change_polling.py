"""Changes between planes: both ends of the long poll `Control.NextChanges`."""

from __future__ import annotations

import asyncio
from typing import Final

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.rpc.internal_grpc import Handler, InternalClient, Unreachable
from pyservice.watch import Change, Changes, LongPolls, Topics

NEXT_CHANGES: Final = "hosting.internal.v1.Control.NextChanges"

_POLL_MS: Final = 20_000
_PATIENCE_MS: Final = 10_000
"""Timeout beyond the requested wait."""
_RETRY_FIRST_MS: Final = 50
_RETRY_MAX_MS: Final = 1_000

log = get_logger("pyservice.rpc")


def next_changes(topics: Topics) -> Handler:
    async def answer(
        request: control_pb2.NextChangesRequest,
    ) -> control_pb2.NextChangesResponse:
        wait_s = min(request.wait_ms, 2 * _POLL_MS) / 1000
        changes = await topics.changes_after(request.run, request.after_sequence, wait_s)
        return control_pb2.NextChangesResponse(
            run=changes.run,
            sequence=changes.sequence,
            changes=(
                control_pb2.TopicChange(topic=topic, sequence=sequence)
                for topic, sequence in changes.topics
            ),
            is_complete=changes.is_complete,
        )

    return answer


class ChangesPoll:
    """Polls for changes while requests wait, and wakes them. Run `run` as a task."""

    def __init__(self, client: InternalClient, waiters: LongPolls) -> None:
        self._client = client
        self._waiters = waiters

    async def run(self) -> None:
        pause_ms = 0
        while True:
            run, after = await self._waiters.question()
            try:
                changes = await self._ask(run, after)
            except (Unreachable, ServiceError) as failure:
                if not pause_ms:
                    log.warning("no news of changes", reason=str(failure))
                pause_ms = min(_RETRY_MAX_MS, 2 * pause_ms or _RETRY_FIRST_MS)
                await asyncio.sleep(pause_ms / 1000)
                continue
            if pause_ms:
                log.info("news of changes again")
            pause_ms = 0
            self._waiters.take(run, changes)

    async def _ask(self, run: str, after: int) -> Changes:
        request = control_pb2.NextChangesRequest(run=run, after_sequence=after, wait_ms=_POLL_MS)
        timeout_s = (_POLL_MS + _PATIENCE_MS) / 1000
        response = await self._client.call(NEXT_CHANGES, request, timeout_s)
        topics = tuple(Change(change.topic, change.sequence) for change in response.changes)
        return Changes(response.run, response.sequence, topics, response.is_complete)
