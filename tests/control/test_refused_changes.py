"""Audit entries of refused changes: their callers, their errors, and their limit."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.audit_log import AuditLog
from pyservice.control.authorization import CallAuthenticator, GrantedScope
from pyservice.control.refused_changes import PER_GROUP_AND_HOUR, RefusedChanges
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import games_pb2
from pyservice.storage import audit_log
from pyservice.storage.database import Database
from tests.control.new_developers import new_developer
from tests.support.full_service import Developer, eventually
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio

IDS: Final = RecordIds()
HOUR_MS: Final = 3_600_000


async def _refusals(developer: Developer, group_id: str, count: int) -> list[dict[str, Any]]:
    async def entries() -> list[dict[str, Any]] | None:
        response = await developer.good("get_audit", group_id=group_id)
        refused = [one for one in response["entries"] if one["outcome"] != "OK"]
        return refused if len(refused) >= count else None

    return list(await eventually(entries))


async def test_refusals_are_in_the_log_of_the_group(developer: Developer, records: Records) -> None:
    member, group_id = await new_developer(developer, records)
    caller = await member.good("inspect_token")
    game_id = await member.game(developer_group_id=group_id)
    of_game = {"game_id": game_id}
    assert await member.code("create_version", **of_game, display_name="", config={})
    assert await member.code("delete_version", **of_game, version_id=IDS.new())
    narrow = await member.good("create_game_token", **of_game)
    of_token = Developer(developer.full_service, developer.client, narrow["token"])
    assert await of_token.code("delete_game", **of_game) == "FORBIDDEN"
    # Reads that are refused are no changes.
    assert await of_token.code("get_group", group_id=group_id) == "FORBIDDEN"
    refused = await _refusals(member, group_id, 3)
    assert {(one["operation"], one["outcome"], one["token_id"]) for one in refused} == {
        ("create_version", "VALIDATION_FAILED", caller["token_id"]),
        ("delete_version", "VERSION_NOT_FOUND", caller["token_id"]),
        ("delete_game", "FORBIDDEN", narrow["token_id"]),
    }
    assert {one["address"] for one in refused} == {"127.0.0.1"}


async def test_game_of_another_group_is_refused_in_the_log_of_the_token(
    developer: Developer, records: Records
) -> None:
    member, group_id = await new_developer(developer, records)
    other, other_id = await new_developer(developer, records)
    game_id = await other.game(developer_group_id=other_id)
    identity_id = (await member.good("inspect_token"))["identity_id"]
    token, token_id = await records.cloud_token(identity_id, group_id)
    of_group = Developer(developer.full_service, developer.client, token)
    assert await of_group.code("reserve_version_name", game_id=game_id) == "GAME_NOT_FOUND"
    [refused] = await _refusals(member, group_id, 1)
    assert (refused["outcome"], refused["token_id"]) == ("GAME_NOT_FOUND", token_id)
    assert refused["object_id"] == game_id
    response = await other.good("get_audit", group_id=other_id)
    assert [one["operation"] for one in response["entries"]] == ["create_game"]


def _caller(group_id: str) -> Caller:
    scope = GrantedScope(IDS.new(), IDS.new(), group_id, None, (group_id,))
    return Caller(TokenKind.CLOUD, b"", b"", b"", Call("", b""), scope)


async def test_refusals_of_a_group_have_a_limit_for_each_hour(database: Database) -> None:
    now_ms = 10 * HOUR_MS
    audit = AuditLog(IDS, now_ms=lambda: now_ms)
    refusals = RefusedChanges(database, audit, CallAuthenticator(database))
    flooding, quiet, request = _caller("flooding"), _caller("quiet"), games_pb2.CreateGameRequest()
    for _ in range(PER_GROUP_AND_HOUR + 5):
        refusals.note(flooding, request, "FORBIDDEN")
    refusals.note(quiet, request, "FORBIDDEN")
    # A failure of the service is no refusal.
    refusals.note(quiet, request, "INTERNAL")
    await refusals.flush()
    now_ms += HOUR_MS
    refusals.note(flooding, request, "FORBIDDEN")
    await refusals.flush()
    async with database.read() as tx:
        rows = await audit_log.newest(tx, 0, 10_000, None, None)
    assert [row.group_id for row in rows].count("flooding") == PER_GROUP_AND_HOUR + 1
    assert [(row.operation, row.outcome) for row in rows if row.group_id == "quiet"] == [
        ("create_game", "FORBIDDEN")
    ]
