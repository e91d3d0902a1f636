"""`pyservice keys rotate`: asks the running control plane, where there is one, then the data plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyservice.cli.asking import (
    Failed,
    admin_socket,
    ask,
    control_socket,
    has_control_plane,
    tell_failed,
)
from pyservice.pb.hosting.internal.v1 import admin_pb2, control_admin_pb2


def rotate(data_dir: Path, drop_unused: bool, is_json: bool) -> int:
    """Exit status: 0 when new keys sign in both planes."""
    try:
        # First: it may be away, and then nothing was done.
        of_control = _rotate_control(data_dir, drop_unused)
        request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
        method = "hosting.internal.v1.Admin.RotateKeys"
        answer = ask(admin_socket(data_dir), data_dir, method, request)
    except Failed as failed:
        return tell_failed("keys", failed)
    if is_json:
        print(json.dumps(_numbers(answer) | of_control))
    else:
        print(answer.current_key)
    return 0


def _rotate_control(data_dir: Path, drop_unused: bool) -> dict[str, Any]:
    """What is told of its keys. Raises Failed."""
    if not has_control_plane(data_dir):
        return {}
    request = control_admin_pb2.RotateControlKeysRequest(drop_unused=drop_unused)
    method = "hosting.internal.v1.ControlAdmin.RotateControlKeys"
    return {"control": _numbers(ask(control_socket(data_dir), data_dir, method, request))}


def _numbers(answer: Any) -> dict[str, Any]:
    return {
        "current_key": answer.current_key,
        "kept_keys": list(answer.kept_keys),
        "dropped_keys": list(answer.dropped_keys),
    }
