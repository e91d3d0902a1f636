"""Requests of the commands to a running service, over the sockets of its data directory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from pyservice.app.supervisor import SUPERVISOR_LOCK_NAME as SERVE_LOCK
from pyservice.control.timestamps import rfc3339
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb
from pyservice.process.directory_lock import lock_holder_pid
from pyservice.rpc import InternalClient, Unreachable


class RequestFailed(Exception):
    """The request failed. `code` is the error code, or empty without a response."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def send_request(socket_path: Path, data_dir: Path, method: str, request: Message) -> Any:
    """Calls a method by its full name. Raises RequestFailed."""
    try:
        return asyncio.run(_send(socket_path, method, request))
    except ServiceError as error:
        raise RequestFailed(str(error), error.code) from None
    except Unreachable as error:
        raise RequestFailed(f"is a service running with --data-dir {data_dir}? {error}") from None
    except OSError as error:
        raise RequestFailed(str(error)) from None


async def _send(socket_path: Path, method: str, request: Message) -> Any:
    async with InternalClient(socket_path) as client:
        return await client.call(method, request)


def has_control_plane(data_dir: Path) -> bool:
    holders = (lock_holder_pid(data_dir / "control"), lock_holder_pid(data_dir, SERVE_LOCK))
    return any(pid is not None and _is_alive(pid) for pid in holders)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def control_socket(data_dir: Path) -> Path:
    return data_dir / "control" / "grpc.sock"


def admin_socket(data_dir: Path) -> Path:
    return data_dir / "admin.sock"


def report_failure(command: str, failed: RequestFailed) -> int:
    print(f"pyservice {command}: {failed}", file=sys.stderr)
    return 1


_SERVICE: Final = "hosting.internal.v1.ControlAdmin"


def create_group(data_dir: Path, display_name: str, owner: str | None, is_json: bool) -> int:
    """Creates a group and prints its id. Like all commands of this module, returns the exit status."""
    request = pb.AdminCreateGroupRequest(display_name=display_name, owner_identity_id=owner)
    try:
        answer = _control_request(data_dir, "AdminCreateGroup", request)
    except RequestFailed as failed:
        return report_failure("group", failed)
    print(json.dumps({"group_id": answer.group_id}) if is_json else answer.group_id)
    return 0


def list_groups(data_dir: Path, is_json: bool) -> int:
    try:
        answer = _control_request(data_dir, "ListGroups", pb.ListGroupsRequest())
    except RequestFailed as failed:
        return report_failure("group", failed)
    if is_json:
        told = [
            {
                "group_id": one.group_id,
                "display_name": one.display_name,
                "owner_identity_id": one.owner_identity_id,
                "create_ms": one.create_ms,
                "member_ids": list(one.member_ids),
                "bio": one.bio,
                "publicity": one.publicity,
            }
            for one in answer.groups
        ]
        print(json.dumps({"groups": told}))
    else:
        for one in answer.groups:
            print(f"{one.group_id}\t{one.display_name}")
    return 0


def update_group(
    data_dir: Path,
    group: str,
    display_name: str | None,
    bio: str | None,
    publicity: str | None,
    is_json: bool,
) -> int:
    request = pb.UpdateGroupRequest(
        group_id=group, display_name=display_name, bio=bio, publicity=publicity
    )
    return _do(data_dir, "UpdateGroup", request, is_json)


def add_member(data_dir: Path, group: str, identity: str, is_json: bool) -> int:
    request = pb.AddMemberRequest(group_id=group, identity_id=identity)
    return _do(data_dir, "AddMember", request, is_json)


def remove_member(data_dir: Path, group: str, identity: str, is_json: bool) -> int:
    request = pb.RemoveMemberRequest(group_id=group, identity_id=identity)
    return _do(data_dir, "RemoveMember", request, is_json)


def _do(data_dir: Path, method: str, request: Message, is_json: bool) -> int:
    try:
        _control_request(data_dir, method, request)
    except RequestFailed as failed:
        return report_failure("group", failed)
    if is_json:
        print("{}")
    return 0


def _control_request(data_dir: Path, method: str, request: Message) -> Any:
    return send_request(control_socket(data_dir), data_dir, f"{_SERVICE}.{method}", request)


def create_identity(data_dir: Path, display_name: str, is_json: bool) -> int:
    request = pb.CreateIdentityRequest(display_name=display_name)
    try:
        answer = send_request(
            control_socket(data_dir), data_dir, f"{_SERVICE}.CreateIdentity", request
        )
    except RequestFailed as failed:
        return report_failure("identity", failed)
    print(json.dumps({"identity_id": answer.identity_id}) if is_json else answer.identity_id)
    return 0


def list_identities(data_dir: Path, is_json: bool) -> int:
    try:
        answer = _control_request(data_dir, "ListIdentities", pb.ListIdentitiesRequest())
    except RequestFailed as failed:
        return report_failure("identity", failed)
    if is_json:
        told = [
            {
                "identity_id": one.identity_id,
                "display_name": one.display_name,
                "create_ms": one.create_ms,
                "group_ids": list(one.group_ids),
            }
            for one in answer.identities
        ]
        print(json.dumps({"identities": told}))
    else:
        for one in answer.identities:
            print(f"{one.identity_id}\t{one.display_name}")
    return 0


BILLING_EVENTS: Final = {
    "payment-failed": pb.BILLING_EVENT_PAYMENT_FAILED,
    "payment-method-attached": pb.BILLING_EVENT_PAYMENT_METHOD_ATTACHED,
    "payment-method-valid": pb.BILLING_EVENT_PAYMENT_METHOD_VALID,
    "payment-succeeded": pb.BILLING_EVENT_PAYMENT_SUCCEEDED,
}

# `fromisoformat` also accepts other forms, such as week dates.
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def record_billing(data_dir: Path, group: str, event: str, time: str, is_json: bool) -> int:
    try:
        request = pb.RecordBillingRequest(
            group_id=group, event=BILLING_EVENTS[event], ts_ms=_unix_ms(event, time)
        )
        _control_request(data_dir, "RecordBilling", request)
    except RequestFailed as failed:
        return report_failure("billing", failed)
    if is_json:
        print("{}")
    return 0


def _unix_ms(event: str, time: str) -> int:
    try:
        if _RFC3339.fullmatch(time) is None:
            raise ValueError
        moment = datetime.fromisoformat(time.upper())
        told = round(moment.timestamp() * 1000)
        if told < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise RequestFailed(
            f"--{event} {time}: give a time such as 2030-01-31T12:00:00Z, not before 1970"
        ) from None
    return told


def list_orphans(data_dir: Path, is_json: bool) -> int:
    try:
        answer = _control_request(data_dir, "ListOrphans", pb.ListOrphansRequest())
    except RequestFailed as failed:
        return report_failure("namespace", failed)
    _print(answer.orphans, "orphans", is_json)
    return 0


def remove_orphans(data_dir: Path, ids: Sequence[str], is_all: bool, is_json: bool) -> int:
    request = pb.RemoveOrphansRequest(namespace_ids=ids, all=is_all)
    try:
        answer = _control_request(data_dir, "RemoveOrphans", request)
    except RequestFailed as failed:
        return report_failure("namespace", failed)
    _print(answer.removed, "removed", is_json)
    return 0


def _print(several: Iterable[pb.Orphan], name: str, is_json: bool) -> None:
    if not is_json:
        for one in several:
            print(f"{one.namespace_id}\t{one.name}")
        return
    told = [
        {
            "namespace_id": one.namespace_id,
            "name": one.name,
            "source_epoch": one.source_epoch,
        }
        for one in several
    ]
    print(json.dumps({name: told}))


_KINDS: Final = {
    "public": admin_pb2.TOKEN_KIND_PUBLIC,
    "environment": admin_pb2.TOKEN_KIND_ENVIRONMENT,
}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DATA: Final = "hosting.internal.v1.Admin.CreateToken"


def create_namespace_token(
    data_dir: Path, kind: str, namespace: str, expires_in: str | None, is_json: bool
) -> int:
    try:
        return _tell(_of_namespace(data_dir, kind, namespace, _duration_ms(expires_in)), is_json)
    except RequestFailed as failed:
        return report_failure("token", failed)


def _of_namespace(data_dir: Path, kind: str, namespace: str, expires_in_ms: int | None) -> Any:
    if has_control_plane(data_dir):
        wanted = pb.CreateNamespaceTokenRequest(
            kind=_KINDS[kind], namespace=namespace, expires_in_ms=expires_in_ms
        )
        try:
            return _control_request(data_dir, "CreateNamespaceToken", wanted)
        except RequestFailed as failed:
            if failed.code not in ("NAMESPACE_NOT_FOUND", "GAME_NOT_FOUND"):
                raise
    request = admin_pb2.CreateTokenRequest(
        kind=_KINDS[kind], namespace=namespace, expires_in_ms=expires_in_ms
    )
    return send_request(admin_socket(data_dir), data_dir, _DATA, request)


def create_cloud_token(
    data_dir: Path,
    group: str | None,
    game: str | None,
    identity: str | None,
    expires_in: str | None,
    is_json: bool,
) -> int:
    """Creates a `cloud_` token and prints it. Without `group` and `game`, it covers all groups of
    the identity.
    """
    request = pb.CreateCloudTokenRequest(identity_id=identity)
    if group is not None:
        request.group_id = group
    elif game is not None:
        request.game_id = game
    else:
        request.all_groups = True
    try:
        if (expires_in_ms := _duration_ms(expires_in)) is not None:
            request.expires_in_ms = expires_in_ms
        answer = _control_request(data_dir, "CreateCloudToken", request)
    except RequestFailed as failed:
        return report_failure("token", failed)
    return _tell(answer, is_json)


def _duration_ms(duration: str | None) -> int | None:
    if duration is None:
        return None
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise RequestFailed(
            f"--expires-in {duration}: give a duration such as 30d or 12h: a whole number from 1 on, and s, m, h or d"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def _tell(answer: Any, is_json: bool) -> int:
    if is_json:
        told = {"token": answer.token, "token_id": answer.token_id}
        if answer.HasField("expires_ms"):
            told["expires_ts"] = rfc3339(answer.expires_ms)
        print(json.dumps(told))
    else:
        print(answer.token)
    return 0


def rotate_keys(data_dir: Path, drop_unused: bool, is_json: bool) -> int:
    try:
        # The control plane is first: if it is unavailable, no key has changed.
        of_control = _rotate_control(data_dir, drop_unused)
        request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
        method = "hosting.internal.v1.Admin.RotateKeys"
        answer = send_request(admin_socket(data_dir), data_dir, method, request)
    except RequestFailed as failed:
        return report_failure("keys", failed)
    if is_json:
        print(json.dumps(_numbers(answer) | of_control))
    else:
        print(answer.current_key)
    return 0


def _rotate_control(data_dir: Path, drop_unused: bool) -> dict[str, Any]:
    if not has_control_plane(data_dir):
        return {}
    request = pb.RotateControlKeysRequest(drop_unused=drop_unused)
    return {"control": _numbers(_control_request(data_dir, "RotateControlKeys", request))}


def _numbers(answer: Any) -> dict[str, Any]:
    return {
        "current_key": answer.current_key,
        "kept_keys": list(answer.kept_keys),
        "dropped_keys": list(answer.dropped_keys),
    }
