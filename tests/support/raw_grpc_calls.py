"""gRPC calls with the bytes of their messages and all of their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from google.rpc import status_pb2

TIMEOUT_S: Final = 30.0

Channel = grpc.aio.Channel
Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Answer:
    status: grpc.StatusCode
    message: str
    data: bytes
    trailers: dict[str, str | bytes]

    @property
    def details(self) -> dict[str, dict[str, Any]]:
        """Details of an error by their short names, such as `ErrorInfo`."""
        packed = self.trailers.get("grpc-status-details-bin")
        if not isinstance(packed, bytes):
            return {}
        status = MessageToDict(status_pb2.Status.FromString(packed))
        return {one.pop("@type").rpartition(".")[2]: one for one in status.get("details", ())}

    @property
    def code(self) -> str:
        if self.status is grpc.StatusCode.OK:
            return "OK"
        return str(self.details.get("ErrorInfo", {}).get("reason", self.status.name))


async def call(channel: Channel, path: str, data: bytes, metadata: Metadata) -> Answer:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    calling = method(data, metadata=tuple(metadata), timeout=TIMEOUT_S)
    response = b""
    try:
        response = await calling
    except grpc.aio.AioRpcError as failure:
        trailers = dict(failure.trailing_metadata() or ())
        return Answer(failure.code(), failure.details() or "", b"", trailers)
    trailers = dict(await calling.trailing_metadata())
    return Answer(await calling.code(), await calling.details(), response, trailers)
