"""`pyservice group`: groups of developers and who is in them, asked of the running control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from pyservice.cli.asking import Failed, ask, control_socket, tell_failed
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb

_SERVICE: Final = "hosting.internal.v1.ControlAdmin"


def create(data_dir: Path, display_name: str, owner: str | None, is_json: bool) -> int:
    """Prints the id. Exit status."""
    request = pb.AdminCreateGroupRequest(display_name=display_name, owner_identity_id=owner)
    try:
        answer = _ask(data_dir, "AdminCreateGroup", request)
    except Failed as failed:
        return tell_failed("group", failed)
    print(json.dumps({"group_id": answer.group_id}) if is_json else answer.group_id)
    return 0


def list_(data_dir: Path, is_json: bool) -> int:
    """Prints a line for each: id, name. Exit status."""
    try:
        answer = _ask(data_dir, "ListGroups", pb.ListGroupsRequest())
    except Failed as failed:
        return tell_failed("group", failed)
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


def update(
    data_dir: Path,
    group: str,
    display_name: str | None,
    bio: str | None,
    publicity: str | None,
    is_json: bool,
) -> int:
    """What is None stays. Exit status: 0 when it is stored, and whoever watches the group knows."""
    request = pb.UpdateGroupRequest(
        group_id=group, display_name=display_name, bio=bio, publicity=publicity
    )
    return _do(data_dir, "UpdateGroup", request, is_json)


def add_member(data_dir: Path, group: str, identity: str, is_json: bool) -> int:
    """Exit status: 0 when it is a member."""
    request = pb.AddMemberRequest(group_id=group, identity_id=identity)
    return _do(data_dir, "AddMember", request, is_json)


def remove_member(data_dir: Path, group: str, identity: str, is_json: bool) -> int:
    """Exit status: 0 when it is none; its tokens for the group have ended."""
    request = pb.RemoveMemberRequest(group_id=group, identity_id=identity)
    return _do(data_dir, "RemoveMember", request, is_json)


def _do(data_dir: Path, method: str, request: Message, is_json: bool) -> int:
    try:
        _ask(data_dir, method, request)
    except Failed as failed:
        return tell_failed("group", failed)
    if is_json:
        print("{}")
    return 0


def _ask(data_dir: Path, method: str, request: Message) -> Any:
    return ask(control_socket(data_dir), data_dir, f"{_SERVICE}.{method}", request)
