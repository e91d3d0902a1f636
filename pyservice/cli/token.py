"""`pyservice token create`: asks the control plane; tokens of namespaces that it does not have (of a static feed) are
made by the data plane.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from pyservice.cli.asking import (
    Failed,
    admin_socket,
    ask,
    control_socket,
    has_control_plane,
    tell_failed,
)
from pyservice.control.timestamps import rfc3339
from pyservice.pb.hosting.internal.v1 import admin_pb2, control_admin_pb2

_KINDS: Final = {
    "public": admin_pb2.TOKEN_KIND_PUBLIC,
    "environment": admin_pb2.TOKEN_KIND_ENVIRONMENT,
}
_DURATION: Final = re.compile(r"([1-9][0-9]{0,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CONTROL: Final = "hosting.internal.v1.ControlAdmin"
_DATA: Final = "hosting.internal.v1.Admin.CreateToken"


def create(data_dir: Path, kind: str, namespace: str, expires_in: str | None, is_json: bool) -> int:
    """Of a namespace. Exit status: 0 when the token was printed and is good."""
    try:
        return _tell(_of_namespace(data_dir, kind, namespace, _milliseconds(expires_in)), is_json)
    except Failed as failed:
        return tell_failed("token", failed)


def _of_namespace(data_dir: Path, kind: str, namespace: str, expires_in_ms: int | None) -> Any:
    """Raises Failed."""
    if has_control_plane(data_dir):
        wanted = control_admin_pb2.CreateNamespaceTokenRequest(
            kind=_KINDS[kind], namespace=namespace, expires_in_ms=expires_in_ms
        )
        method = f"{_CONTROL}.CreateNamespaceToken"
        try:
            return ask(control_socket(data_dir), data_dir, method, wanted)
        except Failed as failed:
            if failed.code not in ("NAMESPACE_NOT_FOUND", "GAME_NOT_FOUND"):
                raise
    request = admin_pb2.CreateTokenRequest(
        kind=_KINDS[kind], namespace=namespace, expires_in_ms=expires_in_ms
    )
    return ask(admin_socket(data_dir), data_dir, _DATA, request)


def create_cloud(
    data_dir: Path,
    group: str | None,
    game: str | None,
    identity: str | None,
    expires_in: str | None,
    is_json: bool,
) -> int:
    """A cloud_ token; without group and game one for all groups of the identity. Exit status as of `create`."""
    request = control_admin_pb2.CreateCloudTokenRequest(identity_id=identity)
    if group is not None:
        request.group_id = group
    elif game is not None:
        request.game_id = game
    else:
        request.all_groups = True
    try:
        if (expires_in_ms := _milliseconds(expires_in)) is not None:
            request.expires_in_ms = expires_in_ms
        answer = ask(control_socket(data_dir), data_dir, f"{_CONTROL}.CreateCloudToken", request)
    except Failed as failed:
        return tell_failed("token", failed)
    return _tell(answer, is_json)


def _milliseconds(duration: str | None) -> int | None:
    """Of a duration such as 30d or 12h. Raises Failed."""
    if duration is None:
        return None
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise Failed(
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
