from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
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
from pyservice.storage.database import Database, open_database
from pyservice.storage.migrations import migrate
from pyservice.storage.tables import rays
from tests.support.databases import KINDS, Databases

pytestmark = pytest.mark.anyio

IDENTITY = str(uuid4())
GROUP = str(uuid4())
NOW_MS = 1_700_000_000_000


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Databases
) -> AsyncIterator[Database]:
    opened = open_database(databases.url(request.param), tmp_path)
    try:
        await migrate(opened, is_allowed=True)
        async with opened.write() as tx:
            await groups.add_identity(tx, IDENTITY, "Owner", NOW_MS)
            await groups.add(tx, GROUP, "Group", IDENTITY, NOW_MS)
        yield opened
    finally:
        await opened.close()


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
            "asker": internal.Asker(identity_id=IDENTITY, group_id=GROUP),
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


async def shown(
    store: RayStore, viewing_caller: Caller, ray_id: str = "a" * 32
) -> list[pb.RayPerf]:
    return list((await store.perf(pb.GetRayPerfRequest(ray_id=ray_id), viewing_caller)).perf_lists)


async def test_repeated_message_is_stored_once(database: Database) -> None:
    store = RayStore(database, 100, Clock())
    request = internal.StoreSpansRequest(span_sets=[span_set(0), span_set(1), span_set(0)])
    await store.store_spans(request)
    await store.store_spans(request)
    assert await count(database) == 2
    assert [one.duration for one in await shown(store, caller())] == [1_500_000] * 2


async def test_invalid_message_is_refused_and_not_stored(
    database: Database,
) -> None:
    store = RayStore(database, 100, Clock())
    request = internal.StoreSpansRequest(span_sets=[span_set(0), span_set(1, ray_id="short")])
    with pytest.raises(ServiceError, match="BODY_INVALID"):
        await store.store_spans(request)
    assert await count(database) == 0


async def test_ray_older_than_a_day_is_hidden_and_deleted(database: Database) -> None:
    clock = Clock()
    store = RayStore(database, 100, clock)
    await store.store([span_set(0), span_set(10)])
    clock.now_ms = NOW_MS + RAY_RETENTION_MS + 5
    assert [one.req_id for one in await shown(store, caller())] == [f"{11:016x}"]
    assert await count(database) == 2
    await store.prune()
    assert await count(database) == 1


async def test_oldest_rays_are_deleted_over_the_limit(database: Database) -> None:
    store = RayStore(database, 5, Clock())
    await store.store([span_set(number) for number in range(8)])
    await store.prune()
    left = [one.req_id for one in await shown(store, caller())]
    assert left == [f"{number + 1:016x}" for number in range(3, 8)]
    await store.prune()
    assert await count(database) == 5


async def test_group_sees_its_own_rays_only(database: Database) -> None:
    store = RayStore(database, 100, Clock())
    of_identity = internal.Asker(identity_id=IDENTITY)
    await store.store([span_set(0), span_set(1, asker=of_identity)])
    ids = [f"{number:016x}" for number in (1, 2)]
    whole = caller(group_id=None)
    assert [one.req_id for one in await shown(store, whole)] == ids
    assert [one.req_id for one in await shown(store, caller())] == ids[:1]
    assert await shown(store, caller(game_id=str(uuid4()))) == []
    other_caller = caller(identity_id=str(uuid4()), group_id=None, groups=())
    assert await shown(store, other_caller) == []


async def test_transport_span_is_shown_with_its_request_only(
    database: Database,
) -> None:
    store = RayStore(database, 100, Clock())
    client = span_set(0, is_passed=True)
    client.ClearField("asker")
    other_transport = span_set(1, is_passed=True)
    other_transport.ClearField("asker")
    behind = span_set(2, parent_span_id=client.span_id, service="control-plane")
    await store.store([client, other_transport, behind])
    assert [one.req_id for one in await shown(store, caller())] == [client.span_id, behind.span_id]


async def test_ray_without_an_owner_is_not_stored(database: Database) -> None:
    store = RayStore(database, 100, Clock())
    nobodys = span_set(0)
    nobodys.ClearField("asker")
    unfed = span_set(1, asker=internal.Asker(namespace_id=str(uuid4())))
    await store.store([nobodys, unfed])
    assert await count(database) == 0


async def test_ray_of_a_signed_url_belongs_to_its_game(
    database: Database,
) -> None:
    store = RayStore(database, 100, Clock())
    game_id, upload_id = str(uuid4()), str(uuid4())
    async with database.write() as tx:
        await games.add(tx, game_id, "arena", "Arena", GROUP, NOW_MS)
        files = [uploads.NewFile("a.txt", 3)]
        await uploads.add(tx, uploads.NewUpload(upload_id, game_id, "site", "x", NOW_MS, files))
    of_upload = internal.Asker(upload_id=upload_id)
    upload = span_set(0, service="cdn", door="cdn", operation="upload", asker=of_upload)
    unknown = span_set(1, asker=internal.Asker(upload_id="up"))
    await store.store([upload, unknown])
    for scope in ({"game_id": game_id}, {}, {"group_id": None}):
        assert [one.req_id for one in await shown(store, caller(**scope))] == [upload.span_id]
    assert await shown(store, caller(game_id=str(uuid4()))) == []
    other_caller = caller(identity_id=str(uuid4()), group_id=None, groups=())
    assert await shown(store, other_caller) == []
    assert await count(database) == 1
    async with database.write() as tx:
        await uploads.abandon(tx, upload_id)
        await uploads.remove(tx, upload_id)
    await store.store([span_set(2, asker=of_upload)])
    assert await count(database) == 1
