"""Signs tokens for the control plane, which has no keys: the handler of `hosting.internal.v1.Signing`."""

from __future__ import annotations

from typing import Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.namespaces import Namespaces
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import signing_pb2 as pb
from pyservice.schema.validation import validate


class Signer(Protocol):
    """The engine's keys. The same ids make the same token."""

    def public_token(self, namespace_id: bytes, token_id: bytes) -> str: ...
    def development_token(self, namespace_id: bytes, token_id: bytes, expires_ms: int) -> str: ...


class Signing:
    """Tokens of namespaces that are held."""

    def __init__(self, namespaces: Namespaces, signer: Signer) -> None:
        self._namespaces = namespaces
        self._signer = signer

    async def sign(self, request: pb.SignTokenRequest) -> pb.SignTokenResponse:
        """The token of an id. Raises NAMESPACE_NOT_FOUND."""
        problems = validate(request)
        if problems:
            raise ServiceError("BODY_INVALID", errors=problems)
        namespace_id = raw_id(request.namespace_id)
        if not self._namespaces.is_known(namespace_id):
            raise ServiceError("NAMESPACE_NOT_FOUND")
        token_id = raw_id(request.token_id)
        if request.kind == pb.SIGNED_KIND_PUBLIC:
            token = self._signer.public_token(namespace_id, token_id)
        else:
            token = self._signer.development_token(namespace_id, token_id, request.expires_ms)
        return pb.SignTokenResponse(token=token)
