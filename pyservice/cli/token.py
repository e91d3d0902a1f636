"""`pyservice token create`: asks the running service over its admin socket."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.rpc import InternalClient, Unreachable

_KINDS: Final = {
    "public": admin_pb2.TOKEN_KIND_PUBLIC,
    "environment": admin_pb2.TOKEN_KIND_ENVIRONMENT,
}


def create(data_dir: Path, kind: str, namespace: str, is_json: bool) -> int:
    """Exit status: 0 when the token was printed and is good."""
    request = admin_pb2.CreateTokenRequest(kind=_KINDS[kind], namespace=namespace)
    try:
        answer = asyncio.run(_ask(data_dir / "admin.sock", request))
    except ServiceError as error:
        return _failed(str(error))
    except Unreachable as error:
        return _failed(f"is a service running with --data-dir {data_dir}? {error}")
    except OSError as error:
        return _failed(str(error))
    if is_json:
        print(json.dumps({"token": answer.token, "token_id": answer.token_id}))
    else:
        print(answer.token)
    return 0


async def _ask(
    socket_path: Path, request: admin_pb2.CreateTokenRequest
) -> admin_pb2.CreateTokenResponse:
    async with InternalClient(socket_path) as client:
        answer: admin_pb2.CreateTokenResponse = await client.call(
            "hosting.internal.v1.Admin.CreateToken", request
        )
        return answer


def _failed(problem: str) -> int:
    print(f"pyservice token: {problem}", file=sys.stderr)
    return 1
