"""`pyservice identity`: people and machines that can be members of groups, asked of the running control plane."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyservice.cli.asking import Failed, ask, control_socket, tell_failed
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb

_SERVICE: Final = "hosting.internal.v1.ControlAdmin"


def create(data_dir: Path, display_name: str, is_json: bool) -> int:
    """Prints the id. Exit status."""
    request = pb.CreateIdentityRequest(display_name=display_name)
    try:
        answer = ask(control_socket(data_dir), data_dir, f"{_SERVICE}.CreateIdentity", request)
    except Failed as failed:
        return tell_failed("identity", failed)
    print(json.dumps({"identity_id": answer.identity_id}) if is_json else answer.identity_id)
    return 0


def list_(data_dir: Path, is_json: bool) -> int:
    """Prints a line for each: id, name. Exit status."""
    method = f"{_SERVICE}.ListIdentities"
    try:
        answer = ask(control_socket(data_dir), data_dir, method, pb.ListIdentitiesRequest())
    except Failed as failed:
        return tell_failed("identity", failed)
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
