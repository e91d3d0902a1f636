"""Creation and signing of namespace tokens, and rotation of the MAC keys that sign them.

Implements `hosting.internal.v1.Admin` and `hosting.internal.v1.Signing`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyservice.auth import keyring
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.durable_files import is_disk_full
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds, format_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import admin_pb2, signing_pb2
from pyservice.schema.validation import require_valid

_log = get_logger("pyservice.keys")


@dataclass(frozen=True, slots=True)
class RotatedKeys:
    current: int
    kept_keys: list[int]
    dropped_keys: list[int]


class MacKeyRotation:
    def __init__(self, data_dir: Path, signer: Engine) -> None:
        self._data_dir = data_dir
        self._signer = signer
        self._turn = asyncio.Lock()
        self._running: asyncio.Task[RotatedKeys] | None = None

    async def rotate(self, *, drop_unused: bool) -> RotatedKeys:
        """Creates a new signing key. With `drop_unused`, deletes the old keys that no stored token
        needs.

        The engine does not store `pub_` and `dev_` tokens, so a deleted key may invalidate some of
        them. Only an administrator may delete keys. After STORAGE_FULL, the key file is unchanged,
        or has the new key and all old keys.
        """
        return await self._change("keys rotated", functools.partial(self._rotate, drop_unused))

    async def drop(self, numbers: Collection[int]) -> RotatedKeys:
        """Deletes exactly the keys with these numbers, or none of them.

        Tokens of other keys stay valid. Raises VALIDATION_FAILED for an unknown key, IN_USE for a
        key that signs or that a stored token needs, and STORAGE_FULL.
        """
        return await self._change("keys dropped", functools.partial(self._drop, numbers))

    async def _change(
        self, event: str, change: Callable[[], Awaitable[tuple[int, list[int]]]]
    ) -> RotatedKeys:
        # Shielded: after a cancellation of the caller, the engine must not differ from the key file.
        self._running = asyncio.create_task(self._change_alone(event, change))
        return await asyncio.shield(self._running)

    async def _change_alone(
        self, event: str, change: Callable[[], Awaitable[tuple[int, list[int]]]]
    ) -> RotatedKeys:
        async with self._turn:
            try:
                current, dropped_keys = await change()
            except OSError as error:
                if is_disk_full(error):
                    raise ServiceError("STORAGE_FULL") from error
                raise
            kept_keys = sorted(set(self._signer.key_ids()) - {current})
        _log.info(event, current_key=current, kept=kept_keys, dropped=dropped_keys)
        return RotatedKeys(current, kept_keys, dropped_keys)

    async def _rotate(self, drop_unused: bool) -> tuple[int, list[int]]:
        ring = await asyncio.to_thread(keyring.rotate, self._data_dir)
        self._signer.add_key(ring.current_key, dict(ring.mac_keys)[ring.current_key])
        # An old key signs nothing new, so a key that is unused now stays unused.
        unused = await asyncio.to_thread(self._signer.unused_keys) if drop_unused else []
        return ring.current_key, await self._remove(unused)

    async def _drop(self, numbers: Collection[int]) -> tuple[int, list[int]]:
        ring = await asyncio.to_thread(keyring.load, self._data_dir)
        known_keys = self._signer.key_ids()
        if unknown := set(numbers).difference(known_keys):
            raise ServiceError(
                "VALIDATION_FAILED",
                f"There is no key {_listed(unknown)}. The keys are {_listed(known_keys)}. "
                "No key was dropped.",
            )
        if ring.current_key in numbers:
            raise ServiceError(
                "IN_USE",
                f"Key {ring.current_key} signs new tokens. No key was dropped. Run `pyservice keys rotate`, "
                "replace the tokens of the key, and repeat this command.",
            )
        unused = await asyncio.to_thread(self._signer.unused_keys)
        if needed := set(numbers).difference(unused):
            raise ServiceError(
                "IN_USE",
                f"A lobby or player token of the last 24 h needs key {_listed(needed)}. No key was dropped. "
                "End the lobbies from before the last rotation, and repeat this command 24 h later.",
            )
        return ring.current_key, await self._remove(numbers)

    async def _remove(self, unused: Collection[int]) -> list[int]:
        """Deletes keys of the last search, first in the file, so that a restart does not bring them back."""
        if unused:
            await asyncio.to_thread(keyring.drop, self._data_dir, unused)
        return [number for number in sorted(unused) if self._signer.drop_key(number)]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


class TokenSigning:
    def __init__(self, namespaces: NamespaceIndex, signer: Engine) -> None:
        self._namespaces = namespaces
        self._signer = signer

    async def sign(self, request: signing_pb2.SignTokenRequest) -> signing_pb2.SignTokenResponse:
        require_valid(request)
        namespace_id = raw_id(request.namespace_id)
        if not self._namespaces.is_known(namespace_id):
            raise ServiceError("NAMESPACE_NOT_FOUND")
        token_id = raw_id(request.token_id)
        if request.kind == signing_pb2.SIGNED_KIND_PUBLIC:
            token = self._signer.public_token(namespace_id, token_id)
        else:
            token = self._signer.development_token(namespace_id, token_id, request.expires_ms)
        return signing_pb2.SignTokenResponse(token=token)


_SECRET_BYTES: Final = 32


class ServiceTokenStore(Protocol):
    async def add_service_token(
        self, namespace_id: str, token_id: str, sha256: bytes, expires_ms: int | None
    ) -> None: ...


class TokenAdministration:
    def __init__(
        self,
        namespaces: NamespaceIndex,
        signer: Engine,
        tokens: ServiceTokenStore | None,
        rotation: MacKeyRotation,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._rotation = rotation
        self._now_ms = now_ms
        self._namespaces = namespaces
        self._signer = signer
        self._tokens = tokens
        self._ids = RecordIds()

    async def create_token(
        self, request: admin_pb2.CreateTokenRequest
    ) -> admin_pb2.CreateTokenResponse:
        require_valid(request)
        namespace = self._namespaces.find(request.namespace)
        if namespace is None:
            raise ServiceError(
                "NAMESPACE_NOT_FOUND",
                f"There is no namespace {request.namespace}; name it game/namespace or by its id.",
            )
        if self._tokens is None:
            raise ServiceError(
                "CONTROL_PLANE_UNAVAILABLE",
                "Create tokens with the control plane, or start the service with a feed file (--feed).",
            )
        token_id, expires_ms = self._ids.new(), None
        if request.HasField("expires_in_ms"):
            expires_ms = self._now_ms() + request.expires_in_ms
        if request.kind == admin_pb2.TOKEN_KIND_PUBLIC:
            token = self._signer.public_token(namespace.namespace_id, raw_id(token_id))
        else:
            secret = urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
            token = f"env_{secret}"
            token_hash = hashlib.sha256(token.encode()).digest()
            await self._tokens.add_service_token(
                format_uuid(namespace.namespace_id), token_id, token_hash, expires_ms
            )
        return admin_pb2.CreateTokenResponse(token=token, token_id=token_id, expires_ms=expires_ms)

    async def rotate_keys(
        self, request: admin_pb2.RotateKeysRequest
    ) -> admin_pb2.RotateKeysResponse:
        rotated = await self._rotation.rotate(drop_unused=request.drop_unused)
        return admin_pb2.RotateKeysResponse(
            current_key=rotated.current,
            kept_keys=rotated.kept_keys,
            dropped_keys=rotated.dropped_keys,
        )

    async def drop_keys(self, request: admin_pb2.DropKeysRequest) -> admin_pb2.DropKeysResponse:
        require_valid(request)
        remaining = await self._rotation.drop(request.keys)
        return admin_pb2.DropKeysResponse(
            current_key=remaining.current,
            kept_keys=remaining.kept_keys,
            dropped_keys=remaining.dropped_keys,
        )
