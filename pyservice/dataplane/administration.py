"""What administrative commands ask of the running data plane: the handlers of
`hosting.internal.v1.Admin`. Making tokens of a namespace, rotating keys; who may ask is the admin
socket's matter.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.key_rotation import KeyRotation
from pyservice.dataplane.namespaces import Namespaces
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds, format_uuid
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb
from pyservice.schema.validation import validate

_SECRET_BYTES: Final = 32


class Signer(Protocol):
    """What signs with the ring."""

    def public_token(self, namespace: bytes, token_id: bytes) -> str: ...


class TokenSource(Protocol):
    """Where hashes of env_ tokens are written, so that they are fed and stay."""

    async def add_environment_token(
        self, namespace_id: str, token_id: str, sha256: bytes, expires_ms: int | None
    ) -> None: ...


class Administration:
    """Makes tokens. A token is told once, in the answer, and nowhere kept."""

    def __init__(
        self,
        namespaces: Namespaces,
        signer: Signer,
        tokens: TokenSource | None,
        rotation: KeyRotation,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`tokens` None: a control plane feeds, and makes the env_ tokens."""
        self._rotation = rotation
        self._now_ms = now_ms
        self._namespaces = namespaces
        self._signer = signer
        self._tokens = tokens
        self._ids = RecordIds()

    async def create_token(self, request: pb.CreateTokenRequest) -> pb.CreateTokenResponse:
        """A token of a namespace, good when the answer is there. Raises NAMESPACE_NOT_FOUND."""
        problems = validate(request)
        if problems:
            raise ServiceError("BODY_INVALID", errors=problems)
        namespace = self._namespaces.named(request.namespace)
        if namespace is None:
            raise ServiceError(
                "NAMESPACE_NOT_FOUND",
                f"There is no namespace {request.namespace}; name it game/namespace or by its id.",
            )
        token_id, expires_ms = self._ids.new(), None
        if request.HasField("expires_in_ms"):
            expires_ms = self._now_ms() + request.expires_in_ms
        if request.kind == pb.TOKEN_KIND_PUBLIC:
            token = self._signer.public_token(namespace.namespace_id, raw_id(token_id))
        else:
            secret = urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
            token = f"env_{secret}"
            await self._feed(format_uuid(namespace.namespace_id), token_id, token, expires_ms)
        return pb.CreateTokenResponse(token=token, token_id=token_id, expires_ms=expires_ms)

    async def rotate_keys(self, request: pb.RotateKeysRequest) -> pb.RotateKeysResponse:
        """A new key signs when the answer is there (decisions 3, Keys). Raises STORAGE_FULL."""
        rotated = await self._rotation.rotate(drop_unused=request.drop_unused)
        return pb.RotateKeysResponse(
            current_key=rotated.current, kept_keys=rotated.kept, dropped_keys=rotated.dropped
        )

    async def _feed(
        self, namespace_id: str, token_id: str, token: str, expires_ms: int | None
    ) -> None:
        if self._tokens is None:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "Environment tokens are made by the control plane, or with a feed file (--feed).",
            )
        token_hash = hashlib.sha256(token.encode()).digest()
        await self._tokens.add_environment_token(namespace_id, token_id, token_hash, expires_ms)
