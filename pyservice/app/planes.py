"""How the planes reach each other: the other one's services over its socket, in the words of its callers."""

from __future__ import annotations

from typing import Any, Final

from pyservice.control.feeder import Away
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2, signing_pb2
from pyservice.rpc import InternalClient, Unreachable

_INTERNAL: Final = "hosting.internal.v1"
_SIGN_TIMEOUT_S: Final = 1.0


class DataPlaneClient:
    """The data plane, for the control plane: it is fed, and signs tokens."""

    def __init__(self, client: InternalClient) -> None:
        self._client = client

    async def apply(self, request: feed_pb2.ApplyRequest) -> feed_pb2.ApplyResponse:
        answer: feed_pb2.ApplyResponse = await self._call("Feed.Apply", request)
        return answer

    async def check(self, request: feed_pb2.CheckRequest) -> feed_pb2.CheckResponse:
        answer: feed_pb2.CheckResponse = await self._call("Feed.Check", request)
        return answer

    async def held(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        answer: feed_pb2.HeldResponse = await self._call("Feed.Held", request)
        return answer

    async def public_token(self, namespace_id: str, token_id: str) -> str:
        """Raises CONTROL_PLANE_UNAVAILABLE when it does not answer."""
        return await self._sign(
            signing_pb2.SignTokenRequest(
                kind=signing_pb2.SIGNED_KIND_PUBLIC, namespace_id=namespace_id, token_id=token_id
            )
        )

    async def development_token(self, namespace_id: str, token_id: str, expires_ms: int) -> str:
        """Raises CONTROL_PLANE_UNAVAILABLE when it does not answer."""
        return await self._sign(
            signing_pb2.SignTokenRequest(
                kind=signing_pb2.SIGNED_KIND_DEVELOPMENT,
                namespace_id=namespace_id,
                token_id=token_id,
                expires_ms=expires_ms,
            )
        )

    async def _sign(self, request: signing_pb2.SignTokenRequest) -> str:
        try:
            answer = await self._call("Signing.SignToken", request, _SIGN_TIMEOUT_S)
        except Away:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "The data plane signs tokens and does not answer; try again.",
            ) from None
        token: str = answer.token
        return token

    async def _call(self, name: str, request: Any, timeout_s: float = 10.0) -> Any:
        try:
            return await self._client.call(f"{_INTERNAL}.{name}", request, timeout_s)
        except Unreachable as error:
            raise Away(str(error)) from None
