"""Recovery of the feeder after missing tables, moving domains and late refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control import feeder
from pyservice.control.authorization import GrantedScope
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.namespaces import NamespaceChange, NamespaceOperations
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.storage import games, namespaces
from pyservice.watch import Topics
from tests.control.feeder_setup import TOO_MANY, Fed
from tests.control.test_feeder import fed as fed
from tests.control.test_feeder import plane as plane
from tests.control.test_feeder import source as source
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_missing_tables_do_not_stop_the_feeder(
    fed: Fed, caplog: pytest.LogCaptureFixture
) -> None:
    namespace_id = await fed.source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    database = fed.source.database

    async def run(statement: str) -> None:
        await database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    await run("ALTER TABLE namespaces RENAME TO namespaces_away")
    fed.feeder.compare_again()
    await until(lambda: fed.feeder.job.unexpected_errors > 0)
    await run("ALTER TABLE namespaces_away RENAME TO namespaces")
    await fed.source.set_version(namespace_id, await fed.source.version(9))
    await fed.enqueue_and_confirm(namespace_id)


async def test_version_is_kept_while_its_domain_is_moving(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Turns off the automatic retry of refused namespaces.
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    source = fed.source
    # The feeder sends the older namespace first.
    taking, giving = await source.namespace("taking"), await source.namespace("giving")

    async def change(namespace_id: str, *, adds: bool) -> None:
        async with source.database.write() as tx:
            if adds:
                await namespaces.add_domain(tx, namespace_id, "moves.example", 1)
            else:
                await namespaces.remove_domain(tx, namespace_id, "moves.example")
            await namespaces.change(tx, namespace_id, {})

    await change(giving, adds=True)
    for namespace_id in (giving, taking):
        await fed.enqueue_and_confirm(namespace_id)
    await fed.end()
    await fed.plane.stop()
    await change(giving, adds=False)
    await change(taking, adds=True)
    version_id = await source.version(9)
    await source.set_version(taking, version_id)
    await fed.plane.start()
    fed.feeder = fed.new_feeder()
    fed.run()
    await fed.wait_until_connected()
    await fed.enqueue_and_confirm(taking)
    assert (await source.row(taking)).version_id == version_id
    assert version_id in await source.history(taking)


async def test_refused_version_is_set_again_under_its_key(
    fed: Fed,
) -> None:
    source, plane = fed.source, fed.plane
    namespace_id = await source.namespace()
    await fed.enqueue_and_confirm(namespace_id)
    ran, version_id = (await source.row(namespace_id)).version_id, await source.version(TOO_MANY)
    context = RecordContext(
        source.database, IdempotentChanges(source.database), RecordIds(), Topics()
    )
    nouns = NamespaceOperations(context, fed.feeder, NamespaceChange(context, fed.feeder))
    async with source.database.read() as tx:
        game = await games.find(tx, source.game_id)
    assert game is not None
    reach = GrantedScope("identity", "token", None, None, (game.group_id,))
    call = Call("0" * 32, b"\x7f\0\0\1", idempotency_key="key")
    caller = Caller(TokenKind.CLOUD, b"", b"", b"x" * 16, call, reach)
    request = pb.UpdateNamespaceVersionRequest(
        game_id=source.game_id, namespace_id=namespace_id, version_id=version_id
    )

    async def code() -> str:
        try:
            await nouns.set_version(request, caller)
        except ServiceError as error:
            return error.code
        return "OK"

    plane.go_on.clear()
    assert await code() == "CONTROL_PLANE_UNAVAILABLE"
    plane.go_on.set()
    await fed.wait_until_idle()
    assert (await source.row(namespace_id)).version_id == ran
    assert await code() == "VALIDATION_FAILED"
    await plane.stop()
    plane.limit = TOO_MANY
    await plane.start()
    fed.feeder.compare_again()
    await fed.wait_until_connected()
    async with asyncio.timeout(30):
        while (output := await code()) == "CONTROL_PLANE_UNAVAILABLE":
            pass
    assert output == "OK"
    assert (await source.row(namespace_id)).version_id == version_id
