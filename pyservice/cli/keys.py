"""`pyservice keys rotate`: asks the running service over its admin socket."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.rpc import InternalClient, Unreachable


def rotate(data_dir: Path, drop_unused: bool, is_json: bool) -> int:
    """Exit status: 0 when a new key signs."""
    request = admin_pb2.RotateKeysRequest(drop_unused=drop_unused)
    try:
        answer = asyncio.run(_ask(data_dir / "admin.sock", request))
    except ServiceError as error:
        return _failed(str(error))
    except Unreachable as error:
        return _failed(f"is a service running with --data-dir {data_dir}? {error}")
    except OSError as error:
        return _failed(str(error))
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


async def _ask(
    socket_path: Path, request: admin_pb2.RotateKeysRequest
) -> admin_pb2.RotateKeysResponse:
    async with InternalClient(socket_path) as client:
        answer: admin_pb2.RotateKeysResponse = await client.call(
            "hosting.internal.v1.Admin.RotateKeys", request
        )
        return answer


def _failed(problem: str) -> int:
    print(f"pyservice keys: {problem}", file=sys.stderr)
    return 1
