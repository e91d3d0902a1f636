"""Requests of the commands to a running service, over the sockets of its data directory."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, ParamSpec

from google.protobuf import json_format
from google.protobuf.message import Message

from pyservice.errors import ServiceError, Unreachable
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.process.directory_lock import (
    LOCK_FILE,
    SUPERVISOR_LOCK_FILE,
    running_holder_pid,
)
from pyservice.process.launch import GUARD_LOCK
from pyservice.rpc import InternalClient
from pyservice.timestamps import rfc3339


class RequestFailed(Exception):
    pass


def send_request(socket_path: Path, data_dir: Path, method: str, request: Message) -> Any:
    """Calls a method by its full name and returns its response. Raises RequestFailed."""
    try:
        return asyncio.run(_send(socket_path, method, request))
    except ServiceError as error:
        raise RequestFailed(str(error)) from None
    except Unreachable:
        raise RequestFailed(_unreachable(socket_path, data_dir)) from None
    except OSError as error:
        raise RequestFailed(str(error)) from None


async def _send(socket_path: Path, method: str, request: Message) -> Any:
    async with InternalClient(socket_path) as client:
        return await client.call(method, request)


def _unreachable(socket_path: Path, data_dir: Path) -> str:
    """Returns why no service answers at the socket."""
    # Edge-guard runs on when a service stops.
    if running_pids(data_dir).keys() <= {"edge_guard"}:
        return f"the service of {data_dir} is stopped: start it first"
    if socket_path.exists() and not os.access(socket_path, os.W_OK):
        return f"this user cannot open {socket_path}: run the command as the user of the service"
    plane = "control plane" if socket_path == control_socket(data_dir) else "data plane"
    return f"the {plane} of {data_dir} does not answer: see the log of the service"


def running_pids(data_dir: Path) -> dict[str, int]:
    """Returns the running processes of a service by role. In one service, edge-guard has the
    supervisor of the planes.
    """
    locks = {
        "supervisor": (data_dir, SUPERVISOR_LOCK_FILE),
        "data": (data_dir, LOCK_FILE),
        "control": (data_dir / "control", LOCK_FILE),
        "edge_guard": (data_dir / "edge", GUARD_LOCK),
    }
    holders = {role: running_holder_pid(*lock) for role, lock in locks.items()}
    return {role: pid for role, pid in holders.items() if pid is not None}


def has_control_plane(data_dir: Path) -> bool:
    return not running_pids(data_dir).keys().isdisjoint({"supervisor", "control"})


def control_socket(data_dir: Path) -> Path:
    return data_dir / "control" / "grpc.sock"


def admin_socket(data_dir: Path) -> Path:
    return data_dir / "admin.sock"


Parameters = ParamSpec("Parameters")


def _command(name: str) -> Callable[[Callable[Parameters, str]], Callable[Parameters, int]]:
    """Returns a decorator for command functions. The decorated function prints the result or
    failure, and returns the exit status.
    """

    def wrap(request: Callable[Parameters, str]) -> Callable[Parameters, int]:
        @functools.wraps(request)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> int:
            try:
                output = request(*args, **kwargs)
            except RequestFailed as failed:
                print(f"pyservice {name}: {failed}", file=sys.stderr)
                return 1
            if output:
                print(output)
            return 0

        return run

    return wrap


_SERVICE: Final = "hosting.internal.v1.ControlAdmin"


def _control_request(data_dir: Path, method: str, request: Message) -> Any:
    return send_request(control_socket(data_dir), data_dir, f"{_SERVICE}.{method}", request)


def _acknowledged(data_dir: Path, method: str, request: Message, is_json: bool) -> str:
    _control_request(data_dir, method, request)
    return "{}" if is_json else ""


def _render_list(items: Iterable[Any], name: str, fields: Sequence[str], is_json: bool) -> str:
    if not is_json:
        return "\n".join(
            f"{getattr(item, fields[0])}\t{getattr(item, fields[1])}" for item in items
        )
    return json.dumps({name: [{field: _plain(item, field) for field in fields} for item in items]})


def _plain(item: Any, field: str) -> Any:
    if item.DESCRIPTOR.fields_by_name[field].has_presence and not item.HasField(field):
        return None
    value = getattr(item, field)
    return value if isinstance(value, str | int) else list(value)


@_command("group")
def create_group(
    data_dir: Path, operator: str, display_name: str, owner: str | None, is_json: bool
) -> str:
    request = pb.AdminCreateGroupRequest(
        display_name=display_name, owner_identity_id=owner, operator=operator
    )
    group_id: str = _control_request(data_dir, "AdminCreateGroup", request).group_id
    return json.dumps({"group_id": group_id}) if is_json else group_id


@_command("group")
def list_groups(data_dir: Path, is_json: bool) -> str:
    groups = _control_request(data_dir, "ListGroups", pb.ListGroupsRequest()).groups
    fields = ["group_id", "display_name", "owner_identity_id", "create_ms", "member_ids"]
    return _render_list(groups, "groups", [*fields, "bio", "publicity"], is_json)


@_command("group")
def update_group(
    data_dir: Path,
    operator: str,
    group: str,
    display_name: str | None,
    bio: str | None,
    publicity: str | None,
    is_json: bool,
) -> str:
    request = pb.UpdateGroupRequest(
        group_id=group, display_name=display_name, bio=bio, publicity=publicity, operator=operator
    )
    return _acknowledged(data_dir, "UpdateGroup", request, is_json)


@_command("group")
def add_member(data_dir: Path, operator: str, group: str, identity: str, is_json: bool) -> str:
    request = pb.AddMemberRequest(group_id=group, identity_id=identity, operator=operator)
    return _acknowledged(data_dir, "AddMember", request, is_json)


@_command("group")
def remove_member(data_dir: Path, operator: str, group: str, identity: str, is_json: bool) -> str:
    request = pb.RemoveMemberRequest(group_id=group, identity_id=identity, operator=operator)
    return _acknowledged(data_dir, "RemoveMember", request, is_json)


@_command("identity")
def create_identity(data_dir: Path, operator: str, display_name: str, is_json: bool) -> str:
    request = pb.CreateIdentityRequest(display_name=display_name, operator=operator)
    identity_id: str = _control_request(data_dir, "CreateIdentity", request).identity_id
    return json.dumps({"identity_id": identity_id}) if is_json else identity_id


@_command("identity")
def list_identities(data_dir: Path, is_json: bool) -> str:
    identities = _control_request(data_dir, "ListIdentities", pb.ListIdentitiesRequest()).identities
    fields = ("identity_id", "display_name", "create_ms", "group_ids", "disable_ms")
    return _render_list(identities, "identities", fields, is_json)


@_command("identity")
def disable_identity(data_dir: Path, operator: str, identity: str, is_json: bool) -> str:
    request = pb.DisableIdentityRequest(identity_id=identity, operator=operator)
    return _acknowledged(data_dir, "DisableIdentity", request, is_json)


@_command("identity")
def enable_identity(data_dir: Path, operator: str, identity: str, is_json: bool) -> str:
    request = pb.EnableIdentityRequest(identity_id=identity, operator=operator)
    return _acknowledged(data_dir, "EnableIdentity", request, is_json)


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


@_command("billing")
def record_billing(
    data_dir: Path, operator: str, group: str, event: str, time: str, is_json: bool
) -> str:
    request = pb.RecordBillingRequest(
        group_id=group, event=BILLING_EVENTS[event], ts_ms=_unix_ms(event, time), operator=operator
    )
    return _acknowledged(data_dir, "RecordBilling", request, is_json)


def _unix_ms(event: str, time: str) -> int:
    try:
        if _RFC3339.fullmatch(time) is None:
            raise ValueError
        instant = datetime.fromisoformat(time.upper())
        unix_ms = round(instant.timestamp() * 1000)
        if unix_ms < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise RequestFailed(
            f"--{event} {time}: give a time such as 2030-01-31T12:00:00Z, not before 1970"
        ) from None
    return unix_ms


@_command("quota")
def list_quotas(data_dir: Path, group: str, is_json: bool) -> str:
    request = pb.ListQuotasRequest(group_id=group)
    quotas = _control_request(data_dir, "ListQuotas", request).quotas
    if is_json:
        fields = ["quota", "scope", "unit", "limit", "is_default", "use", "object_id"]
        return _render_list(quotas, "quotas", fields, is_json)
    return "\n".join(f"{quota.quota}\t{quota.use}\t{quota.limit}" for quota in quotas)


@_command("quota")
def set_quotas(
    data_dir: Path, operator: str, group: str, limits: Mapping[str, int], is_json: bool
) -> str:
    request = pb.SetQuotasRequest(group_id=group, limits=limits, operator=operator)
    return _acknowledged(data_dir, "SetQuotas", request, is_json)


@_command("quota")
def reset_quotas(
    data_dir: Path, operator: str, group: str, names: Sequence[str], is_json: bool
) -> str:
    request = pb.ResetQuotasRequest(group_id=group, quotas=names, operator=operator)
    return _acknowledged(data_dir, "ResetQuotas", request, is_json)


@_command("audit")
def list_audit(
    data_dir: Path,
    group: str | None,
    identity: str | None,
    since: str | None,
    limit: int,
    is_json: bool,
) -> str:
    request = pb.ListAuditRequest(
        group_id=group,
        identity_id=identity,
        since_ms=0 if since is None else _unix_ms("since", since),
        limit=limit,
    )
    entries = _control_request(data_dir, "ListAudit", request).entries
    if is_json:
        return json.dumps(
            {
                "entries": [
                    json_format.MessageToDict(entry, preserving_proto_field_name=True)
                    for entry in entries
                ]
            }
        )
    return "\n".join("\t".join(_audit_words(entry)) for entry in entries)


def _audit_words(entry: groups_pb2.AuditEntry) -> Iterator[str]:
    for name in ("ts", "operation", "outcome"):
        yield getattr(entry, name)
    who = entry.token_id or entry.actor
    yield f"{who} {entry.actor_name}" if entry.actor_name else who
    for name in ("address", "group_id"):
        yield getattr(entry, name) or "-"
    yield f"{entry.object_type}:{entry.object_id}" if entry.object_type else "-"


_ORPHAN_FIELDS: Final = ("namespace_id", "name", "source_epoch")


@_command("namespace")
def list_orphans(data_dir: Path, is_json: bool) -> str:
    response = _control_request(data_dir, "ListOrphans", pb.ListOrphansRequest())
    return _render_list(response.orphans, "orphans", _ORPHAN_FIELDS, is_json)


@_command("namespace")
def remove_orphans(
    data_dir: Path, operator: str, ids: Sequence[str], is_all: bool, is_json: bool
) -> str:
    request = pb.RemoveOrphansRequest(namespace_ids=ids, all=is_all, operator=operator)
    response = _control_request(data_dir, "RemoveOrphans", request)
    return _render_list(response.removed, "removed", _ORPHAN_FIELDS, is_json)


_KINDS: Final = {
    "public": admin_pb2.TOKEN_KIND_PUBLIC,
    "environment": admin_pb2.TOKEN_KIND_ENVIRONMENT,
}
_DURATION: Final = re.compile(r"(0|[1-9][0-9]{0,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DATA: Final = "hosting.internal.v1.Admin.CreateToken"


@_command("token")
def create_namespace_token(
    data_dir: Path,
    operator: str,
    kind: str,
    namespace: str,
    expires_in: str | None,
    is_json: bool,
) -> str:
    expires_in_ms = _lifetime_ms(expires_in)
    if has_control_plane(data_dir):
        control_request = pb.CreateNamespaceTokenRequest(
            kind=_KINDS[kind],
            namespace=namespace,
            expires_in_ms=expires_in_ms,
            operator=operator,
        )
        response = _control_request(data_dir, "CreateNamespaceToken", control_request)
        return _token_text(response, is_json)
    # A data plane alone has a feed file, and no records of tokens.
    request = admin_pb2.CreateTokenRequest(
        kind=_KINDS[kind], namespace=namespace, expires_in_ms=expires_in_ms
    )
    return _token_text(send_request(admin_socket(data_dir), data_dir, _DATA, request), is_json)


@_command("token")
def create_cloud_token(
    data_dir: Path,
    operator: str,
    group: str | None,
    game: str | None,
    identity: str | None,
    expires_in: str | None,
    is_json: bool,
) -> str:
    """Creates a `cloud_` token. Without `group` and `game`, the token covers all groups of the
    identity.
    """
    request = pb.CreateCloudTokenRequest(identity_id=identity, operator=operator)
    if group is not None:
        request.group_id = group
    elif game is not None:
        request.game_id = game
    else:
        request.all_groups = True
    if (expires_in_ms := _lifetime_ms(expires_in)) is not None:
        request.expires_in_ms = expires_in_ms
    return _token_text(_control_request(data_dir, "CreateCloudToken", request), is_json)


_LISTED_KINDS: Final = {
    "cloud": "cloud",
    "public": "pub",
    "environment": "env",
    "development": "dev",
}
_LISTED_FIELDS: Final = tuple(field.name for field in pb.ListedToken.DESCRIPTOR.fields)


@_command("token")
def list_tokens(
    data_dir: Path,
    identity: str | None,
    group: str | None,
    kind: str | None,
    with_ended: bool,
    is_json: bool,
) -> str:
    """Lists tokens of all groups, one line each: id, kind, state, owner and scope."""
    request = pb.ListTokensRequest(
        identity_id=identity,
        group_id=group,
        kind=None if kind is None else _LISTED_KINDS[kind],
        with_ended=with_ended,
    )
    found: list[pb.ListedToken] = []
    while page := list(_control_request(data_dir, "ListTokens", request).tokens):
        found.extend(page)
        request.before_token_id = page[-1].token_id
    if is_json:
        return _render_list(found, "tokens", _LISTED_FIELDS, is_json)
    return "\n".join(map(_token_line, found))


def _token_line(token: pb.ListedToken) -> str:
    owner = f"{token.identity_id} {token.display_name}" if token.identity_id else "operator"
    scope = "all groups"
    if token.namespace:
        scope = f"namespace {token.namespace}"
    elif token.game_id:
        scope = f"game {token.game_id}"
    elif token.group_id:
        scope = f"group {token.group_id}"
    return "\t".join((token.token_id, token.kind, token.state, owner, scope))


@_command("token")
def revoke_tokens(
    data_dir: Path, operator: str, ids: Sequence[str], cascade: bool, is_json: bool
) -> str:
    request = pb.RevokeTokensRequest(
        token_ids=dict.fromkeys(ids), cascade=cascade, operator=operator
    )
    return _acknowledged(data_dir, "RevokeTokens", request, is_json)


def _lifetime_ms(duration: str | None) -> int | None:
    return None if duration is None else duration_ms("expires-in", duration, "30d or 12h")


def duration_ms(
    option: str, duration: str, example: str, *, least: int = 1, most_ms: int | None = None
) -> int:
    """Returns a duration in ms. Raises RequestFailed if it is invalid, or more than some whole days."""
    match = _DURATION.fullmatch(duration)
    if match is None or int(match[1]) < least:
        raise RequestFailed(
            f"--{option} {duration}: give a duration such as {example}: a whole number from {least} on,"
            " and s, m, h or d"
        )
    value_ms = int(match[1]) * _UNITS_MS[match[2]]
    if most_ms is not None and value_ms > most_ms:
        raise RequestFailed(
            f"--{option} {duration}: at most {most_ms // _UNITS_MS['d']}d are allowed"
        )
    return value_ms


def _token_text(response: Any, is_json: bool) -> str:
    if not is_json:
        return str(response.token)
    fields = {"token": response.token, "token_id": response.token_id}
    if response.HasField("expires_ms"):
        fields["expires_ts"] = rfc3339(response.expires_ms)
    return json.dumps(fields)


@_command("keys")
def rotate_keys(data_dir: Path, operator: str, drop_unused: bool, is_json: bool) -> str:
    # The control plane is first: if it is unavailable, no key has changed.
    of_control = _rotate_control(data_dir, operator, drop_unused)
    request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
    method = "hosting.internal.v1.Admin.RotateKeys"
    response = send_request(admin_socket(data_dir), data_dir, method, request)
    return json.dumps(_numbers(response) | of_control) if is_json else str(response.current_key)


@_command("keys")
def drop_keys(data_dir: Path, keys: Sequence[int], is_json: bool) -> str:
    request = admin_pb2.DropKeysRequest(keys=dict.fromkeys(keys))
    method = "hosting.internal.v1.Admin.DropKeys"
    response = send_request(admin_socket(data_dir), data_dir, method, request)
    if is_json:
        return json.dumps(_numbers(response))
    dropped, valid = (
        ", ".join(map(str, keys))
        for keys in (response.dropped_keys, [*response.kept_keys, response.current_key])
    )
    return f"Dropped: {dropped}\nStill valid: {valid}\nSigns new tokens: {response.current_key}"


def _rotate_control(data_dir: Path, operator: str, drop_unused: bool) -> dict[str, Any]:
    if not has_control_plane(data_dir):
        return {}
    request = pb.RotateControlKeysRequest(drop_unused=drop_unused, operator=operator)
    return {"control": _numbers(_control_request(data_dir, "RotateControlKeys", request))}


def _numbers(response: Any) -> dict[str, Any]:
    return {
        "current_key": response.current_key,
        "kept_keys": list(response.kept_keys),
        "dropped_keys": list(response.dropped_keys),
    }
