"""Storage of rays: owners, retention and invalid messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import func, select

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.rays import RAY_RETENTION_MS, RayStore
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import rays_pb2 as internal
from pyservice.pb.hosting.v1 import rays_pb2 as pb
from pyservice.storage import games, groups, uploads
from pyservice.storage.database import Database
from pyservice.storage.tables import rays
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]

IDENTITY = str(uuid4())
GROUP = str(uuid4())
NOW_MS = 1_700_000_000_000


OTHER_IDENTITY: dict[str, Any] = {"identity_id": str(uuid4()), "group_id": None, "groups": ()}


def clock(now_ms: int = NOW_MS) -> Callable[[], int]:
    return lambda: now_ms


@pytest.fixture
async def store(database: Database) -> RayStore:
    async with database.write() as tx:
        await groups.add_identity(tx, IDENTITY, "Owner", NOW_MS)
        await groups.add(tx, GROUP, "Group", IDENTITY, NOW_MS)
    return RayStore(database, 5, clock())


def span_set(number: int, ray_id: str = "a" * 32, **fields: Any) -> internal.SpanSet:
    start_ns = (NOW_MS + number) * 1_000_000
    return internal.SpanSet(
        **{
            "ray_id": ray_id,
            "span_id": f"{number + 1:016x}",
            "service": "data-plane",
            "operation": "find",
            "door": "http",
            "code": "OK",
            "start_ns": start_ns,
            "end_ns": start_ns + 1_500_000,
            "caller": internal.RayCaller(identity_id=IDENTITY, group_id=GROUP),
            **fields,
        }
    )


def caller(**scope: Any) -> Caller:
    reach = {"identity_id": IDENTITY, "group_id": GROUP, "game_id": None, "groups": (GROUP,)}
    created = GrantedScope(token_id=str(uuid4()), **{**reach, **scope})
    return Caller(TokenKind.CLOUD, b"", b"", b"", Call("0" * 32, b"\x7f\0\0\1"), created)


async def count(database: Database) -> int:
    async with database.read() as tx:
        return int((await tx.all(select(func.count()).select_from(rays)))[0][0])


async def ray_ids(store: RayStore, **scope: Any) -> list[str]:
    request = pb.GetRayPerfRequest(ray_id="a" * 32)
    return [one.req_id for one in (await store.perf(request, caller(**scope))).perf_lists]


def ids_of(*numbers: int) -> list[str]:
    return [f"{number + 1:016x}" for number in numbers]


def span_set_of(number: int, **fields: Any) -> internal.SpanSet:
    return span_set(number, caller=internal.RayCaller(**fields))


async def test_repeated_message_is_stored_once(database: Database, store: RayStore) -> None:
    request = internal.StoreSpansRequest(span_sets=[span_set(0), span_set(1), span_set(0)])
    await store.store_spans(request)
    await store.store_spans(request)
    assert await count(database) == 2
    answer = await store.perf(pb.GetRayPerfRequest(ray_id="a" * 32), caller())
    assert [one.duration for one in answer.perf_lists] == [1_500_000] * 2


async def test_invalid_message_is_refused_and_not_stored(
    database: Database, store: RayStore
) -> None:
    request = internal.StoreSpansRequest(span_sets=[span_set(0), span_set(1, ray_id="short")])
    with pytest.raises(ServiceError, match="BODY_INVALID"):
        await store.store_spans(request)
    assert await count(database) == 0


async def test_ray_older_than_a_day_is_hidden_and_deleted(
    database: Database, store: RayStore
) -> None:
    await store.store([span_set(0), span_set(10)])
    later = RayStore(database, 5, clock(NOW_MS + RAY_RETENTION_MS + 5))
    assert await ray_ids(later) == ids_of(10)
    assert await count(database) == 2
    await later.prune()
    assert await count(database) == 1


async def test_oldest_rays_are_deleted_over_the_limit(database: Database, store: RayStore) -> None:
    await store.store([span_set(number) for number in range(8)])
    for _ in range(2):
        await store.prune()
        assert await ray_ids(store) == ids_of(*range(3, 8))
    assert await count(database) == 5


async def test_group_sees_its_own_rays_only(store: RayStore) -> None:
    await store.store([span_set(0), span_set_of(1, identity_id=IDENTITY)])
    assert await ray_ids(store, group_id=None) == ids_of(0, 1)
    assert await ray_ids(store) == ids_of(0)
    assert await ray_ids(store, game_id=str(uuid4())) == []
    assert await ray_ids(store, **OTHER_IDENTITY) == []


async def test_ray_without_an_owner_is_not_stored(database: Database, store: RayStore) -> None:
    await store.store([span_set(0, caller=None), span_set_of(1, namespace_id=str(uuid4()))])
    assert await count(database) == 0


async def test_ray_of_a_signed_url_belongs_to_its_game(database: Database, store: RayStore) -> None:
    game_id, upload_id = str(uuid4()), str(uuid4())
    async with database.write() as tx:
        await games.add(tx, game_id, "arena", "Arena", GROUP, NOW_MS)
        files = [uploads.NewFile("a.txt", 3)]
        await uploads.add(tx, uploads.NewUpload(upload_id, game_id, "site", "x", NOW_MS, files))
    await store.store([span_set_of(0, upload_id=upload_id), span_set_of(1, upload_id="up")])
    for scope in ({"game_id": game_id}, {}, {"group_id": None}):
        assert await ray_ids(store, **scope) == ids_of(0)
    assert await ray_ids(store, game_id=str(uuid4())) == []
    assert await ray_ids(store, **OTHER_IDENTITY) == []
    assert await count(database) == 1
    async with database.write() as tx:
        await uploads.abandon(tx, upload_id)
        await uploads.remove(tx, upload_id)
    await store.store([span_set_of(2, upload_id=upload_id)])
    assert await count(database) == 1
