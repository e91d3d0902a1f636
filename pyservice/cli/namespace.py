"""`pyservice namespace`: namespaces that the data plane holds and no record has, asked of the running control plane."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from pyservice.cli.asking import Failed, ask, control_socket, tell_failed
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb

_SERVICE: Final = "hosting.internal.v1.ControlAdmin"


def orphans(data_dir: Path, is_json: bool) -> int:
    """Prints a line for each: id, game/namespace. Exit status."""
    try:
        answer = _ask(data_dir, "ListOrphans", pb.ListOrphansRequest())
    except Failed as failed:
        return tell_failed("namespace", failed)
    _print(answer.orphans, "orphans", is_json)
    return 0


def remove_orphans(data_dir: Path, ids: Sequence[str], is_all: bool, is_json: bool) -> int:
    """Prints what was removed. Exit status."""
    request = pb.RemoveOrphansRequest(namespace_ids=ids, all=is_all)
    try:
        answer = _ask(data_dir, "RemoveOrphans", request)
    except Failed as failed:
        return tell_failed("namespace", failed)
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


def _ask(data_dir: Path, method: str, request: Message) -> Any:
    return ask(control_socket(data_dir), data_dir, f"{_SERVICE}.{method}", request)
