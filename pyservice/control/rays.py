"""Rays, which are traces of requests. They are stored for a day.

A ray consists of span sets, one for each request that a server handled. A caller sees a span set if
the caller's token covers the game, group or identity of this request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyservice.calls import Caller
from pyservice.control.authorization import GrantedScope, scope_covers, scope_of
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.ids import GAME_NAME_MAX, is_name_id, is_uuid
from pyservice.pb.hosting.internal.v1 import rays_pb2 as internal
from pyservice.pb.hosting.v1 import rays_pb2 as pb
from pyservice.schema.validation import validate
from pyservice.storage import groups, rays
from pyservice.storage.database import Conflict, Database, Record, Transaction
from pyservice.timestamps import now_ms, rfc3339

RAY_RETENTION_MS: Final = 24 * 3_600_000
_SHOWN_MAX: Final = 1_000
"""Maximum of span sets read for one ray. Beyond it, the oldest are shown."""
_PRUNE_EVERY_S: Final = 60.0
_RETRIES_S: Final = (5.0, _PRUNE_EVERY_S)
_MS: Final = 1_000_000
_NOT_KEPT: Final = (
    "No record of this ray was kept, or your token does not cover it. In each second, the service "
    "keeps the first failed or slow requests of each namespace, the first ones with traceparent, "
    "and 1 in 100 of the others, for 24 hours."
)


class RayStore:
    def __init__(
        self, database: Database, kept_max: int, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        self._database = database
        self._kept_max = kept_max
        self._now_ms = clock_ms
        self.job = RetryingJob(
            "rays", "rays not pruned", pauses_s=_RETRIES_S, is_worth_a_warning=True
        )

    async def perf(self, request: pb.GetRayPerfRequest, caller: Caller) -> pb.GetRayPerfResponse:
        """Returns the span sets of a ray that the caller may see. The list can be empty."""
        since_ms = self._now_ms() - RAY_RETENTION_MS
        async with self._database.read() as tx:
            rows = await rays.of_ray(tx, request.ray_id, since_ms, _SHOWN_MAX)
        perf_lists = list(map(_perf_of, _visible(rows, scope_of(caller))))
        return pb.GetRayPerfResponse(
            perf_lists=perf_lists, detail=None if perf_lists else _NOT_KEPT
        )

    async def store_spans(self, request: internal.StoreSpansRequest) -> internal.StoreSpansResponse:
        problems = validate(request)
        if problems:
            raise ServiceError("BODY_INVALID", errors=problems)
        await self.store(request.span_sets)
        return internal.StoreSpansResponse()

    async def store(self, span_sets: Sequence[internal.SpanSet]) -> None:
        """Stores the span sets of requests that belong to a game, group or identity. Call it again
        after a ServiceError.
        """
        try:
            async with self._database.write() as tx:
                rows = await _rows(tx, span_sets)
                if rows:
                    await rays.add(tx, rows)
        except Conflict:
            raise ServiceError("OVERLOADED") from None

    async def run(self) -> None:
        await self.job.repeat_forever(self.prune, every_s=_PRUNE_EVERY_S)

    async def prune(self) -> None:
        await rays.prune(self._database, self._now_ms() - RAY_RETENTION_MS, self._kept_max)


async def _rows(tx: Transaction, span_sets: Sequence[internal.SpanSet]) -> list[dict[str, Any]]:
    callers = [span_set.caller for span_set in span_sets]
    of_namespaces = await rays.games_of_namespaces(
        tx, {caller.namespace_id for caller in callers if caller.namespace_id}
    )
    of_uploads = await rays.games_of_uploads(
        tx, {caller.upload_id for caller in callers if caller.upload_id}
    )
    games_by_name = await rays.games_by_name(
        tx,
        # A refused path may contain any text.
        {
            text
            for caller in callers
            for text in (caller.named_game, caller.game_id)
            if _is_name(text)
        },
    )
    members: dict[str, Sequence[str]] = {}
    rows = []
    for span_set in span_sets:
        caller = span_set.caller
        if caller.identity_id and caller.identity_id not in members:
            members[caller.identity_id] = await groups.ids_of_identity(tx, caller.identity_id)
        game = of_namespaces.get(caller.namespace_id) or of_uploads.get(caller.upload_id)
        subject = _subject(caller, game, games_by_name, members.get(caller.identity_id, ()))
        if subject is None:
            continue
        rows.append(
            {
                "ray_id": span_set.ray_id,
                "span_id": span_set.span_id,
                "parent_span_id": span_set.parent_span_id,
                "create_ms": span_set.start_ns // _MS,
                "span_set": _without_caller(span_set).SerializeToString(),
                "identity_id": None,
                "group_id": None,
                "game_id": None,
                **subject,
            }
        )
    return rows


def _without_caller(span_set: internal.SpanSet) -> internal.SpanSet:
    copy = internal.SpanSet()
    copy.CopyFrom(span_set)
    copy.ClearField("caller")
    return copy


def _is_name(text: str) -> bool:
    return is_uuid(text) or is_name_id(text, GAME_NAME_MAX)


def _subject(
    caller: internal.RayCaller,
    game: Record | None,
    games_by_name: Mapping[str, Record],
    members: Sequence[str],
) -> dict[str, str] | None:
    if game is None and caller.identity_id:
        game = games_by_name.get(caller.named_game)
        if game is None or not _reaches(caller, game, members):
            game = games_by_name.get(caller.game_id)
    if game is not None:
        return {"game_id": game.game_id, "group_id": game.group_id}
    if caller.group_id:
        return {"group_id": caller.group_id}
    if caller.identity_id:
        return {"identity_id": caller.identity_id}
    return None


def _reaches(caller: internal.RayCaller, game: Record, members: Sequence[str]) -> bool:
    if caller.game_id:
        return bool(caller.game_id == game.game_id)
    if caller.group_id:
        return bool(caller.group_id == game.group_id)
    return game.group_id in members


def _visible(rows: Sequence[Record], scope: GrantedScope) -> list[internal.SpanSet]:
    """Returns the span sets of requests that the scope covers.

    Clients can choose any ray id. Therefore access is checked for each span set of a ray.
    """
    visible = [row for row in rows if _is_covered(row, scope)]
    span_sets = [internal.SpanSet.FromString(row.span_set) for row in visible]
    return sorted(span_sets, key=lambda span_set: span_set.start_ns)


def _is_covered(row: Record, scope: GrantedScope) -> bool:
    if row.game_id is not None:
        return scope_covers(scope, row.game_id, row.group_id)
    if row.group_id is not None:
        return scope.game_id is None and row.group_id in scope.groups
    is_whole = scope.group_id is None and scope.game_id is None
    return is_whole and row.identity_id is not None and row.identity_id == scope.identity_id


def _perf_of(span_set: internal.SpanSet) -> pb.RayPerf:
    ray_id, req_id = span_set.ray_id, span_set.span_id
    return pb.RayPerf(
        svc_name=span_set.service,
        ts=rfc3339(span_set.start_ns // _MS),
        duration=span_set.end_ns - span_set.start_ns,
        req_id=req_id,
        marks=[
            pb.RayMark(
                label=mark.label, ts=rfc3339(mark.at_ns // _MS), ray_id=ray_id, req_id=req_id
            )
            for mark in span_set.marks
        ],
        spans=[
            _span(
                f"{span_set.door} {span_set.operation}", span_set.start_ns, span_set.end_ns, req_id
            ),
            *(_span(span.label, span.start_ns, span.end_ns, req_id) for span in span_set.spans),
        ],
    )


def _span(label: str, start_ns: int, end_ns: int, req_id: str) -> pb.RaySpan:
    start_ts, finish_ts = rfc3339(start_ns // _MS), rfc3339(end_ns // _MS)
    return pb.RaySpan(label=label, start_ts=start_ts, finish_ts=finish_ts, req_id=req_id)
