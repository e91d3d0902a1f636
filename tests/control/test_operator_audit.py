"""Audit entries of the operator's commands, the command `pyservice audit`, and the clean-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast
from uuid import uuid4

import pytest

from pyservice.cli.admin_requests import control_socket
from pyservice.control.admin_operations import AdminOperations, OrphanedNamespaces
from pyservice.control.audit_log import AuditLog, operation_of
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.errors import ServiceError, Unreachable
from pyservice.ids import RecordIds
from pyservice.pb.hosting.internal.v1 import admin_pb2, feed_pb2
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb
from pyservice.rpc import InternalClient
from pyservice.settings.sections import AuditSettings
from pyservice.storage import audit_log
from pyservice.storage.database import Database
from pyservice.watch import Topics
from tests.control.new_developers import new_developer, unique
from tests.control.service_fixtures import each_database
from tests.support.command_line import error_output, json_output, output
from tests.support.full_service import Developer
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio

DAY_MS: Final = 24 * 3_600_000
ENTRY_FOR_EACH_NAMESPACE: Final = {"RemoveOrphans"}
"""Commands with an entry for each removed object, see `test_orphaned_namespaces`."""

Ids = dict[str, str]
REQUESTS: Final[dict[str, Callable[[Ids], Any]]] = {
    "CreateIdentity": lambda _: pb.CreateIdentityRequest(display_name=unique()),
    "AdminCreateGroup": lambda _: pb.AdminCreateGroupRequest(display_name=unique()),
    "UpdateGroup": lambda ids: pb.UpdateGroupRequest(group_id=ids["group"], bio="x"),
    "AddMember": lambda ids: pb.AddMemberRequest(
        group_id=ids["group"], identity_id=ids["identity"]
    ),
    "RemoveMember": lambda ids: pb.RemoveMemberRequest(
        group_id=ids["group"], identity_id=ids["identity"]
    ),
    "CreateCloudToken": lambda ids: pb.CreateCloudTokenRequest(game_id=ids["game"]),
    "CreateNamespaceToken": lambda ids: pb.CreateNamespaceTokenRequest(
        kind=admin_pb2.TOKEN_KIND_ENVIRONMENT, namespace=ids["namespace"]
    ),
    "RecordBilling": lambda ids: pb.RecordBillingRequest(
        group_id=ids["group"], event=pb.BILLING_EVENT_PAYMENT_FAILED, ts_ms=1
    ),
    "SetQuotas": lambda ids: pb.SetQuotasRequest(group_id=ids["group"], limits={"games": 9}),
    "ResetQuotas": lambda ids: pb.ResetQuotasRequest(group_id=ids["group"]),
    "DisableIdentity": lambda ids: pb.DisableIdentityRequest(identity_id=ids["identity"]),
    "EnableIdentity": lambda ids: pb.EnableIdentityRequest(identity_id=ids["identity"]),
    "RevokeTokens": lambda ids: pb.RevokeTokensRequest(token_ids=[ids["token"]]),
    "RotateControlKeys": lambda _: pb.RotateControlKeysRequest(),
}


def test_every_command_that_writes_has_a_request() -> None:
    service = pb.DESCRIPTOR.services_by_name["ControlAdmin"]
    commands = {one.name for one in service.methods if not one.name.startswith("List")}
    assert commands == REQUESTS.keys() | ENTRY_FOR_EACH_NAMESPACE


async def test_each_command_has_one_entry(owner: Developer, records: Records) -> None:
    member, group_id = await new_developer(owner, records)
    person, _ = await records.identity()
    game_id = await member.game(developer_group_id=group_id)
    game = await member.good("get_game", game_id=game_id)
    namespace_id = game["game"]["namespaces"][0]["namespace_id"]
    token = await member.good("create_game_token", game_id=game_id)
    ids = {"group": group_id, "identity": person, "game": game_id, "namespace": namespace_id}
    ids["token"] = token["token_id"]
    data_dir = owner.full_service.data_dir
    async with InternalClient(control_socket(data_dir)) as client:
        before = (await client.call(_method("ListAudit"), pb.ListAuditRequest(limit=1))).entries
        for name, make in REQUESTS.items():
            request = make(ids)
            response = await client.call(_method(name), request)
            listed = await client.call(_method("ListAudit"), pb.ListAuditRequest(limit=2))
            entry = listed.entries[0]
            assert listed.entries[1:] == before, name
            assert (entry.actor, entry.operation) == ("operator", operation_of(request))
            assert (entry.outcome, entry.token_id, entry.address) == ("OK", "", "")
            assert entry.group_id in (group_id, getattr(response, "group_id", "")), name
            before = [entry]
    in_group = (await member.good("get_audit", group_id=group_id))["entries"]
    assert [one["operation"] for one in in_group if one["actor"] == "operator"] == [
        *("revoke_tokens", "reset_quotas", "set_quotas", "record_billing"),
        *(
            "create_namespace_token",
            "create_cloud_token",
            "remove_member",
            "add_member",
            "update_group",
        ),
    ]


def _method(name: str) -> str:
    return f"hosting.internal.v1.ControlAdmin.{name}"


async def test_command_prints_the_entries_of_its_filters(
    owner: Developer, records: Records
) -> None:
    member, group_id = await new_developer(owner, records)
    game_id = await member.game(developer_group_id=group_id)
    await member.good("reserve_version_name", game_id=game_id)
    caller = await member.good("inspect_token")
    data_dir = owner.full_service.data_dir
    lines = (await output(data_dir, "audit", "--group", group_id)).splitlines()
    listed = await json_output(data_dir, "identity", "list")
    names = {one["identity_id"]: one["display_name"] for one in listed["identities"]}
    token = f"{caller['token_id']} {names[caller['identity_id']]}"
    assert [line.split("\t")[1:] for line in lines] == [
        [name, "OK", token, "127.0.0.1", group_id, f"game:{game_id}"]
        for name in ("reserve_version_name", "create_game")
    ]
    of_identity = ("--identity", caller["identity_id"])
    entries = (await json_output(data_dir, "audit", *of_identity, "--limit", "1"))["entries"]
    assert [one["operation"] for one in entries] == ["reserve_version_name"]
    since = entries[0]["ts"]
    listed = await json_output(data_dir, "audit", *of_identity, "--since", since)
    assert listed["entries"][0] == entries[0]
    assert await output(data_dir, "audit", "--group", str(uuid4())) == ""
    later = ("audit", "--group", group_id, "--since")
    assert await output(data_dir, *later, "2100-01-01T00:00:00Z") == ""
    assert "--since yesterday" in await error_output(data_dir, *later, "yesterday")


async def test_entries_distinguish_operators_by_name(
    owner: Developer, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, group_id = await new_developer(owner, records)
    data_dir = owner.full_service.data_dir

    async def newest_actor() -> str:
        line = await output(data_dir, "audit", "--group", group_id, "--limit", "1")
        return line.split("\t")[3]

    change = ("quota", "set", "games=20", "--group", group_id)
    await output(data_dir, *change, "--as", "Alice B.")
    assert await newest_actor() == "operator Alice B."
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setenv("LOGNAME", "bob")
    await output(data_dir, *change)
    assert await newest_actor() == "operator bob"
    monkeypatch.setenv("SUDO_USER", "carol")
    await output(data_dir, *change)
    assert await newest_actor() == "operator carol"
    [entry] = (await json_output(data_dir, "audit", "--group", group_id, "--limit", "1"))["entries"]
    assert (entry["actor"], entry["actor_name"]) == ("operator", "carol")
    # A line break would forge a line of the log.
    assert "operator" in await error_output(data_dir, *change, "--as", "x\nforged")


def test_every_request_of_an_operator_can_have_a_name() -> None:
    for name, make in REQUESTS.items():
        request = make(dict.fromkeys(("group", "identity", "game", "namespace", "token"), "x"))
        assert "operator" in request.DESCRIPTOR.fields_by_name, name
    assert "operator" in pb.RemoveOrphansRequest.DESCRIPTOR.fields_by_name


class FailingDataPlane:
    """Data plane with three orphaned namespaces. It becomes unavailable at the third removal."""

    def __init__(self) -> None:
        self.orphan_ids = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
        self.removed_ids: list[str] = []

    async def held_configurations(self, _: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        orphans = [
            feed_pb2.HeldConfiguration(namespace_id=one, source_epoch=1) for one in self.orphan_ids
        ]
        return feed_pb2.HeldResponse(configurations=orphans)

    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        if len(self.removed_ids) == 2:
            raise Unreachable("unavailable")
        self.removed_ids.append(request.namespace_id)
        return feed_pb2.RemoveResponse(removed=feed_pb2.Removed())


@each_database
async def test_failed_removal_of_orphans_has_entries_for_the_removed_ones(
    database: Database,
) -> None:
    plane, missing = FailingDataPlane(), cast(Any, None)
    context = RecordContext(database, IdempotentChanges(database), RecordIds(), Topics())
    orphans = OrphanedNamespaces(database, 2, plane, lambda: None)
    operations = AdminOperations(context, missing, missing, orphans, *[missing] * 4)
    with pytest.raises(ServiceError) as caught:
        await operations.remove_orphans(pb.RemoveOrphansRequest(all=True))
    assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"
    assert plane.removed_ids == plane.orphan_ids[:2]
    async with database.read() as tx:
        entries = await audit_log.newest(tx, 0, 10, None, None)
    assert [(one.operation, one.object_id) for one in entries] == [
        ("remove_orphans", one) for one in reversed(plane.removed_ids)
    ]


def _entry(group_id: str, audit_id: str, create_ms: int) -> audit_log.Entry:
    return audit_log.Entry(
        *(group_id, audit_id, create_ms, "operator", None, None, None),
        *("create_group", "OK", None, None, None, None, None),
    )


@each_database
async def test_cleanup_removes_old_entries_and_those_beyond_the_limit(database: Database) -> None:
    ids, now_ms = RecordIds(), 100 * DAY_MS
    settings = AuditSettings(retention_days=90, entries_per_group=1_000)
    audit = AuditLog(ids, now_ms=lambda: now_ms, settings=settings)
    old = [_entry("small", ids.new(), 10 * DAY_MS - 1) for _ in range(450)]
    kept = [_entry("small", ids.new(), 10 * DAY_MS) for _ in range(3)]
    many = [_entry("large", ids.new(), now_ms) for _ in range(1_450)]
    async with database.write() as tx:
        await audit_log.add(tx, [*old, *kept, *many])
        # Only groups with new entries are trimmed.
        await audit.add_of_operator(tx, pb.UpdateGroupRequest(group_id="large"))
    await IdempotentChanges(database, lambda: now_ms, audit=audit).clean_up()
    async with database.read() as tx:
        rows = await audit_log.newest(tx, 0, 10_000, None, None)
    left = {one: sorted(row.audit_id for row in rows if row.group_id == one) for one in _GROUPS}
    assert left["small"] == [one.audit_id for one in kept]
    assert left["large"][:-1] == [one.audit_id for one in many[-999:]]


_GROUPS: Final = ("small", "large")
