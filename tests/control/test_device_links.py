"""Device links: a device gets a game token without manual input."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import delete, func, select

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.device_links import (
    KEPT_MAX,
    LINK_LIFETIME_MS,
    DeviceLinkKeys,
    DeviceLinkOperations,
)
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.signing_keys import SigningKeyFile
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import devices_pb2 as pb
from pyservice.storage import tokens as links
from pyservice.storage.database import Database, Record, Transaction, open_database
from pyservice.storage.tables import cloud_tokens, device_links, idempotent_answers, metadata
from pyservice.watch import Topics
from tests.control.response_shapes import ID, TEXT, WATCH, shape
from tests.support.full_service import Developer, FullService, ServiceClient, eventually
from tests.support.namespace_scenario import Records
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def _link(client: ServiceClient, key: str | None = None) -> dict[str, str]:
    answer = await client.call("prepare_device_link", {}, key=key)
    assert answer.code == "OK", answer
    body: dict[str, str] = answer.body
    return body


def operations_with(
    database: Database, keys: DeviceLinkKeys, clock_ms: Callable[[], int], kept_max: int = KEPT_MAX
) -> DeviceLinkOperations:
    changes = IdempotentChanges(database)
    context = RecordContext(database, changes, RecordIds(), Topics(), clock_ms)
    urls = PublicUrls("http://127.0.0.1:1", None, "https://hub.example", None, str)
    return DeviceLinkOperations(context, keys, urls, kept_max)


def anonymous(number: int = 1, key: str | None = None) -> Caller:
    call = Call("0" * 32, number.to_bytes(4, "big"), idempotency_key=key)
    return Caller(TokenKind.TOKENLESS, b"", b"", call.address, call)


@pytest.fixture
def keys(tmp_path: Path) -> DeviceLinkKeys:
    return DeviceLinkKeys(SigningKeyFile.load_or_create(tmp_path))


PREPARE = pb.PrepareDeviceLinkRequest()


async def test_completed_link_gives_the_device_a_game_token(developer: Developer) -> None:
    game_id, other_id = await developer.game(), await developer.game()
    link = await _link(developer.client)
    assert shape(link) == {"device_link_id": ID, "device_link_token": TEXT, "device_link_url": TEXT}
    token = link["device_link_token"]
    assert token.startswith("link_")
    assert len(token) <= 160
    assert link["device_link_url"].endswith(f"/link#{token}")
    before = await developer.client.call("get_device_link", {"device_link_token": token})
    assert shape(before.body) == {"watch": WATCH}
    fields = {"device_link_token": token, "game_id": game_id}
    assert await developer.good("complete_device_link", **fields) == {}
    after = await developer.client.call("get_device_link", {"device_link_token": token})
    assert shape(after.body) == {"cloud_token": TEXT, "watch": WATCH}
    device = Developer(developer.full_service, developer.client, after.body["cloud_token"])
    token_info = await device.good("inspect_token")
    assert token_info["game_id"] == game_id
    assert (await device.good("get_game", game_id=game_id))["game"]["game_id"] == game_id
    assert await device.code("get_game", game_id=other_id) == "GAME_NOT_FOUND"


async def test_device_waits_for_completion(developer: Developer) -> None:
    game_id = await developer.game()
    token = (await _link(developer.client))["device_link_token"]
    fields = {"device_link_token": token}
    index = (await developer.client.call("get_device_link", fields)).body["watch"]["index"]
    waiting_task = asyncio.create_task(
        developer.client.call("get_device_link", {**fields, "watch_index": index})
    )
    done, _ = await asyncio.wait({waiting_task}, timeout=0.25)
    assert not done
    await developer.good("complete_device_link", **fields, game_id=game_id)
    first = await asyncio.wait_for(waiting_task, PATIENCE_S)
    repeat = await developer.client.call("get_device_link", fields)
    assert first.body["cloud_token"] == repeat.body["cloud_token"]
    assert first.body["watch"]["index"] != index


async def test_only_a_repeated_completion_succeeds_twice(
    owner: Developer, records: Records
) -> None:
    game_id, other_id, key = await owner.game(), await owner.game(), uuid4().hex
    created = [await _link(owner.client, key) for _ in range(2)]
    assert created[0] == created[1]
    token = created[0]["device_link_token"]
    complete = "complete_device_link"
    for _ in range(2):
        fields = {"device_link_token": token, "game_id": game_id}
        assert await owner.good(complete, key, **fields) == {}
    assert await owner.code(complete, **fields) == "DEVICE_LINK_USED"
    other = (await _link(owner.client))["device_link_token"]
    calls = [
        owner.call(complete, device_link_token=other, game_id=one) for one in (game_id, other_id)
    ]
    codes = [answer.code for answer in await asyncio.gather(*calls)]
    assert sorted(codes) == ["DEVICE_LINK_USED", "OK"]
    async with records.database.read() as tx:
        of_games = cloud_tokens.c.game_id.in_([game_id, other_id])
        assert len(await tx.all(select(cloud_tokens.c.token_id).where(of_games))) == 2


async def test_tokens_are_not_stored_in_clear(
    owner: Developer, records: Records, full_service: FullService
) -> None:
    game_id = await owner.game()
    token = (await _link(owner.client, uuid4().hex))["device_link_token"]
    fields = {"device_link_token": token}
    await owner.good("complete_device_link", **fields, game_id=game_id)
    secret = (await owner.client.call("get_device_link", fields)).body["cloud_token"]
    async with records.database.read() as tx:
        row = await tx.first(select(cloud_tokens).where(cloud_tokens.c.game_id == game_id))
        stored = [str(await tx.all(select(table))) for table in metadata.sorted_tables]
    assert row is not None
    assert row.sha256 == sha256(secret.encode()).digest()
    assert not any(token in rows or secret in rows for rows in stored)
    key_file = full_service.data_dir / "control" / "keys.json"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600


@pytest.mark.parametrize("slug", ["get_device_link", "complete_device_link"])
async def test_unsigned_token_is_invalid(owner: Developer, slug: str) -> None:
    game_id = await owner.game()
    good = (await _link(owner.client))["device_link_token"]
    middle = len(good) // 2
    tampered = good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :]
    for token in (tampered, good[:-4], good + "AAAA", "link_", "x", owner.token):
        fields = {"device_link_token": token}
        if slug == "complete_device_link":
            fields["game_id"] = game_id
        assert await owner.code(slug, **fields) == "TOKEN_INVALID", token


async def test_forgotten_link_is_not_found(owner: Developer, records: Records) -> None:
    game_id = await owner.game()
    link = await _link(owner.client)
    async with records.database.write() as tx:
        condition = device_links.c.device_link_id == link["device_link_id"]
        await tx.run(delete(device_links).where(condition))
    fields = {"device_link_token": link["device_link_token"]}
    assert await owner.code("get_device_link", **fields) == "DEVICE_LINK_NOT_FOUND"
    fields["game_id"] = game_id
    assert await owner.code("complete_device_link", **fields) == "DEVICE_LINK_NOT_FOUND"


async def test_link_expires_and_is_deleted_a_day_later(
    records: Records, keys: DeviceLinkKeys
) -> None:
    # With a clock in the past, no record of another test expires.
    database, clock, caller = records.database, [1_000_000_000_000], anonymous()
    created = operations_with(database, keys, lambda: clock[0])
    link = await created.prepare(PREPARE, caller)
    request = pb.GetDeviceLinkRequest(device_link_token=link.device_link_token)
    clock[0] += LINK_LIFETIME_MS - 1
    assert isinstance(await created.get(request, caller), pb.GetDeviceLinkResponse)
    clock[0] += 1
    with pytest.raises(ServiceError) as caught:
        await created.get(request, caller)
    assert caught.value.code == "TOKEN_EXPIRED"
    clock[0] += 24 * 3_600_000 + 1
    await created.prepare(PREPARE, caller)
    async with database.read() as tx:
        assert await links.find_device_link(tx, link.device_link_id) is None


async def test_anonymous_links_and_responses_are_bounded(
    records: Records, keys: DeviceLinkKeys
) -> None:
    database, limit, now_ms = records.database, 200, 4_000_000_000_000
    changes = IdempotentChanges(database)
    created = operations_with(database, keys, lambda: now_ms, limit)

    def caller(number: int) -> Caller:
        return anonymous(number, f"key {number}")

    async def repeat(text: str) -> pb.GetDeviceLinkResponse:
        async def change(_: Transaction) -> pb.GetDeviceLinkResponse:
            return pb.GetDeviceLinkResponse(cloud_token=text)

        request = pb.GetDeviceLinkRequest()
        return await changes.apply(owner, request, pb.GetDeviceLinkResponse, change)

    # Responses of identified callers and completed links must not be deleted.
    call = Call("0" * 32, b"", idempotency_key="k")
    owner = Caller(TokenKind.CLOUD, b"", b"", uuid4().bytes, call)
    remembered = await repeat("first")
    first = await created.prepare(PREPARE, caller(0))
    async with database.write() as tx:
        assert await links.complete_device_link(
            tx, first.device_link_id, "game", "token", b"s", now_ms
        )
    answers = [await created.prepare(PREPARE, caller(number)) for number in range(1, 2 * limit)]
    # The number of links is checked periodically, so it can exceed the limit by 1 %.
    most = limit + limit // 100 + 1
    is_anonymous = idempotent_answers.c.anonymous_number.is_not(None)
    is_open = device_links.c.complete_ms.is_(None)
    async with database.read() as tx:
        counted = select(func.count().label("number"))
        waiting = await tx.first(counted.select_from(device_links).where(is_open))
        response_count = await tx.first(counted.select_from(idempotent_answers).where(is_anonymous))
        newest = [await links.find_device_link(tx, one.device_link_id) for one in answers[-limit:]]
        assert await links.find_device_link(tx, first.device_link_id) is not None
        assert await links.find_device_link(tx, answers[0].device_link_id) is None
    assert waiting is not None
    assert response_count is not None
    assert limit <= waiting.number <= most
    assert response_count.number <= most
    assert None not in newest
    assert await repeat("second") == remembered
    async with database.write() as tx:
        await tx.run(delete(device_links).where(is_open))
    last = caller(2 * limit - 1)
    twice = [await created.prepare(PREPARE, last) for _ in range(2)]
    assert twice[0] == twice[1] != answers[-1]


async def test_concurrent_links_are_dropped_once(
    records: Records, keys: DeviceLinkKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[int] = []
    forget = links.trim_uncompleted_device_links

    async def noted(database: Database, limit: int, most: int | None = None) -> int:
        dropped.append(limit)
        return await forget(database, limit, most)

    monkeypatch.setattr(links, "trim_uncompleted_device_links", noted)
    created = operations_with(records.database, keys, lambda: 4_000_000_000_000, kept_max=5_000)
    for number in (1, 2):
        await asyncio.gather(*(created.prepare(PREPARE, anonymous()) for _ in range(30)))
        assert dropped == [5_000] * number


async def row_of(records: Records, link: dict[str, str]) -> Record:
    async with records.database.read() as tx:
        row = await links.find_device_link(tx, link["device_link_id"])
    assert row is not None
    return row


async def test_token_cannot_be_derived_after_the_link_ended(
    owner: Developer, records: Records, full_service: FullService
) -> None:
    keys = DeviceLinkKeys(SigningKeyFile.load_or_create(full_service.data_dir / "control"))
    game_id, link = await owner.game(), await _link(owner.client)
    fields = {"device_link_token": link["device_link_token"]}
    await owner.good("complete_device_link", **fields, game_id=game_id)
    token = (await owner.client.call("get_device_link", fields)).body["cloud_token"]
    row = await row_of(records, link)
    for ended_ms in (row.expires_ms - 1, row.expires_ms):
        await operations_with(records.database, keys, partial(int, ended_ms)).delete_expired()
        row = await row_of(records, link)
        stored_secrets = [b"", row.token_secret or b""]
        can = {
            keys.device_token(row.device_link_id, secret, row.key_number)
            for secret in stored_secrets
        }
        assert (token in can) is (ended_ms < row.expires_ms)
    assert row.token_secret is None
    assert (await owner.client.call("get_device_link", fields)).code == "TOKEN_EXPIRED"
    assert await Developer(full_service, owner.client, token).good("inspect_token")


def test_two_devices_of_one_key_share_nothing(keys: DeviceLinkKeys) -> None:
    link_id = str(uuid4())
    created = [keys.device_token(link_id, bytes([one]) * 32, keys.current) for one in (1, 2, 1)]
    assert created[0] == created[2] != created[1]


@pytest.mark.full
async def test_secret_is_deleted_after_downtime(tmp_path: Path) -> None:
    full_service = FullService(tmp_path)
    try:
        full_service.start()
        assert full_service.stop() == 0
        database = open_database(None, full_service.data_dir / "control")
        async with database.write() as tx:
            for name, expires_ms in (("ended", 2), ("lasting", 9_000_000_000_000)):
                await links.add_device_link(tx, name, 1, expires_ms, 1)
                assert await links.complete_device_link(tx, name, "game", "token", b"secret", 1)
        await database.close()
        full_service.start()
        database = open_database(None, full_service.data_dir / "control")

        async def is_gone() -> bool:
            async with database.read() as tx:
                rows = await tx.all(select(device_links).order_by(device_links.c.expires_ms))
            return [row.token_secret for row in rows] in ([None, b"secret"], [b"secret"])

        await eventually(is_gone)
        await database.close()
    finally:
        full_service.close()


async def test_links_survive_a_key_rotation(tmp_path: Path) -> None:
    now = [5_000_000]
    control = SigningKeyFile.load_or_create(tmp_path, lambda: now[0])
    keys, link_id = DeviceLinkKeys(control), str(uuid4())
    old = keys.link_token(link_id, now[0] + LINK_LIFETIME_MS, 1)
    device = keys.device_token(link_id, b"secret", 1)
    await control.rotate(drop_unused=False)
    assert keys.current == 2
    assert keys.link_token(link_id, now[0] + LINK_LIFETIME_MS, 1) == old
    assert keys.read(old) == (link_id, now[0] + LINK_LIFETIME_MS)
    assert keys.device_token(link_id, b"secret", 1) == device
    # A link token forged with the old key must not live longer than a real one.
    forged = keys.link_token(link_id, now[0] + 2 * LINK_LIFETIME_MS, 1)
    with pytest.raises(ServiceError, match="device_link_token"):
        keys.read(forged)
    now[0] += 24 * 3_600_000
    await control.rotate(drop_unused=True)
    assert keys.device_token(link_id, b"secret", 1) is None
    with pytest.raises(ServiceError, match="device_link_token"):
        keys.read(old)
    assert keys.link_token(link_id, 1, 1) != old
