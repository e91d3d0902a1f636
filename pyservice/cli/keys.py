"""`pyservice keys rotate`: asks the running data plane over its admin socket."""

from __future__ import annotations

import json
from pathlib import Path

from pyservice.cli.asking import Failed, admin_socket, ask, tell_failed
from pyservice.pb.hosting.internal.v1 import admin_pb2


def rotate(data_dir: Path, drop_unused: bool, is_json: bool) -> int:
    """Exit status: 0 when a new key signs."""
    request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
    method = "hosting.internal.v1.Admin.RotateKeys"
    try:
        answer = ask(admin_socket(data_dir), data_dir, method, request)
    except Failed as failed:
        return tell_failed("keys", failed)
    if is_json:
        keys = {
            "current_key": answer.current_key,
            "kept_keys": list(answer.kept_keys),
            "dropped_keys": list(answer.dropped_keys),
        }
        print(json.dumps(keys))
    else:
        print(answer.current_key)
    return 0
