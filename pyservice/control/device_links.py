"""Operations on device links, which give a device a `cloud_` token.

The device creates a link, a person completes the link, and the device receives the token. The token
is derived from a signing key and a secret of the link. The secret is deleted when the link expires.
"""

from __future__ import annotations

import hmac
import math
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from typing import Final
from uuid import UUID

from pyservice.calls import Caller, WaitForChange
from pyservice.control import authorization
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.retrying_job import RetryingJob
from pyservice.control.signing_keys import SigningKey, SigningKeyFile
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import devices_pb2 as pb
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.storage import stored_responses, tokens
from pyservice.storage.database import Record, Transaction

LINK_LIFETIME_MS: Final = 10 * 60_000
_REMEMBERED_MS: Final = 24 * 3_600_000
_PRUNE_EVERY_MS: Final = 60_000
KEPT_MAX: Final = 100_000
"""Maximum of uncompleted links, and of stored responses to callers without a token."""
_CLEANUP_BATCHES: Final = 10
"""Batches of one cleanup. Cleanups must delete faster than links are created."""
_CLEANUP_INTERVAL_S: Final = 30.0
_RETRIES_S: Final = (1.0, _CLEANUP_INTERVAL_S)
_SECRET_BYTES: Final = 32
_SIGNING_MS: Final = 60_000
_KIND: Final = "link_"
_BODY: Final = struct.Struct(">16sQI")


@dataclass(frozen=True, slots=True)
class DeviceLinkKeys:
    keys: SigningKeyFile

    @property
    def current(self) -> int:
        return self.keys.now.current.number

    def link_token(self, device_link_id: str, expires_ms: int, number: int) -> str:
        """Returns the token that identifies a link. Repeated calls return the same token while the
        signing key `number` exists.
        """
        body = _BODY.pack(UUID(device_link_id).bytes, expires_ms, number)
        # The key was only dropped if the link expired long ago.
        key = self.keys.now.find_key(number) or self.keys.now.current
        return _KIND + _text(body + _mac(key, b"link", body))

    def read(self, link_token: str) -> tuple[str, int]:
        """Returns the id and the expiry (Unix ms) of the link that a link token identifies. Raises
        TOKEN_INVALID.
        """
        raw = _bytes(link_token.removeprefix(_KIND)) if link_token.startswith(_KIND) else b""
        body, mac = raw[: _BODY.size], raw[_BODY.size :]
        if len(body) == _BODY.size:
            link, expires_ms, number = _BODY.unpack(body)
            key = self.keys.now.find_key(number)
            is_ours = key is not None and hmac.compare_digest(mac, _mac(key, b"link", body))
            if key is not None and is_ours and expires_ms <= _last_end_ms(key):
                return format_uuid(link), expires_ms
        raise ServiceError("TOKEN_INVALID", "Send the device_link_token of the response unchanged.")

    def device_token(self, device_link_id: str, secret: bytes, number: int) -> str | None:
        """Returns the device's `cloud_` token, or None if the signing key `number` was deleted."""
        key = self.keys.now.find_key(number)
        if key is None:
            return None
        return f"cloud_{_text(_mac(key, b'cloud', UUID(device_link_id).bytes + secret))}"


def _last_end_ms(key: SigningKey) -> float:
    """Returns the latest expiry (Unix ms) that is valid for a link signed with this key. The limit
    protects against a leaked old key.
    """
    return math.inf if key.ended_ms is None else key.ended_ms + LINK_LIFETIME_MS + _SIGNING_MS


def _mac(key: SigningKey, purpose: bytes, body: bytes) -> bytes:
    return hmac.digest(key.derive(purpose), body, "sha256")


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    return raw if _text(raw) == text else b""


def _topic(device_link_id: str) -> str:
    return f"device_link:{device_link_id}"


class DeviceLinkOperations:
    def __init__(
        self,
        context: RecordContext,
        keys: DeviceLinkKeys,
        links: PublicUrls,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._database = context.database
        self._changes = context.changes
        self._ids = context.ids
        self._topics = context.topics
        self._keys = keys
        self._links = links
        self._now_ms = context.now_ms
        self._quotas = context.quotas
        self._prune_ms = 0
        self._kept_max = kept_max
        self._unpruned = 0
        self.job = RetryingJob(
            "devices",
            "secrets of expired device links not deleted",
            pauses_s=_RETRIES_S,
            is_worth_a_warning=True,
        )

    async def prepare(
        self, request: pb.PrepareDeviceLinkRequest, caller: Caller
    ) -> pb.PrepareDeviceLinkResponse:
        """Creates a link. Callers need no token, so the number of uncompleted links is limited.
        Above the limit, the oldest are deleted.
        """

        async def change(tx: Transaction) -> pb.PrepareDeviceLinkResponse:
            now, device_link_id = self._now_ms(), self._ids.new()
            await tokens.add_device_link(
                tx, device_link_id, now, now + LINK_LIFETIME_MS, self._keys.current
            )
            # The token is a secret and is not stored: it is derived again from the record.
            return pb.PrepareDeviceLinkResponse(device_link_id=device_link_id)

        async def is_kept(tx: Transaction, stored: pb.PrepareDeviceLinkResponse) -> bool:
            return await tokens.find_device_link(tx, stored.device_link_id) is not None

        await self._prune()
        response = await self._changes.apply(
            caller, request, pb.PrepareDeviceLinkResponse, change, is_kept
        )
        async with self._database.read() as tx:
            row = await tokens.find_device_link(tx, response.device_link_id)
        if row is None:
            # Many other links were created meanwhile.
            raise ServiceError("OVERLOADED")
        token = self._keys.link_token(row.device_link_id, row.expires_ms, row.key_number)
        return pb.PrepareDeviceLinkResponse(
            device_link_id=row.device_link_id,
            device_link_token=token,
            device_link_url=self._links.device_link_url(token),
        )

    async def _prune(self) -> None:
        now = self._now_ms()
        self._unpruned += 1
        if now < self._prune_ms and self._unpruned <= self._kept_max // 100:
            return
        # Set before the first await, so that no concurrent call prunes.
        self._prune_ms, self._unpruned = now + _PRUNE_EVERY_MS, 0
        most = _CLEANUP_BATCHES
        await tokens.remove_device_links_before(self._database, now - _REMEMBERED_MS, most)
        await tokens.trim_uncompleted_device_links(self._database, self._kept_max, most)
        await stored_responses.trim_anonymous(self._database, self._kept_max, most)

    async def get(
        self, request: pb.GetDeviceLinkRequest, caller: Caller
    ) -> pb.GetDeviceLinkResponse | WaitForChange:
        device_link_id = self._verified_id(request.device_link_token)
        topic = _topic(device_link_id)
        index = self._topics.index_of(topic)
        watch_index = request.watch_index if request.HasField("watch_index") else None
        wait = self._topics.wait_unless_changed(watch_index, caller.call, topic)
        if wait is not None:
            return wait
        async with self._database.read() as tx:
            row = await _find(tx, device_link_id)
        token = None
        if row.complete_ms is not None:
            secret = row.token_secret
            token = secret and self._keys.device_token(device_link_id, secret, row.key_number)
            if token is None:
                raise _expired_error()
        return pb.GetDeviceLinkResponse(cloud_token=token, watch=envelope_pb2.Watch(index=index))

    async def complete(
        self, request: pb.CompleteDeviceLinkRequest, caller: Caller
    ) -> pb.CompleteDeviceLinkResponse:
        device_link_id = self._verified_id(request.device_link_token)

        async def change(tx: Transaction) -> None:
            creator = await authorization.lock_creator(tx, caller, self._now_ms())
            game = await authorization.find_game(tx, caller, request.game_id)
            link = await _find(tx, device_link_id)
            await self._quotas.require(tx, game.group_id, {"cloud_tokens": 1})
            now, token_id, secret = self._now_ms(), self._ids.new(), token_bytes(_SECRET_BYTES)
            token = self._keys.device_token(device_link_id, secret, link.key_number)
            if token is None:
                raise _expired_error()
            if not await tokens.complete_device_link(
                tx, device_link_id, game.game_id, token_id, secret, now
            ):
                raise ServiceError("DEVICE_LINK_USED")
            token_hash = sha256(token.encode()).digest()
            new = tokens.NewCloudToken(
                token_id,
                token_hash,
                now,
                creator.identity_id,
                game.group_id,
                game.game_id,
                creator.expires_ms,
                creator.token_id,
            )
            await tokens.add_cloud(tx, new)
            authorization.name_object(caller, "token", token_id)
            tx.after_commit(lambda: self._topics.bump(_topic(device_link_id)))

        return await self._changes.apply(caller, request, pb.CompleteDeviceLinkResponse, change)

    def _verified_id(self, link_token: str) -> str:
        device_link_id, expires_ms = self._keys.read(link_token)
        if expires_ms <= self._now_ms():
            raise _expired_error()
        return device_link_id

    async def run_cleanup(self) -> None:
        await self.job.repeat_forever(self.delete_expired, every_s=_CLEANUP_INTERVAL_S)

    async def delete_expired(self) -> None:
        now = self._now_ms()
        await tokens.erase_device_link_secrets(self._database, now)
        await tokens.remove_device_links_before(
            self._database, now - _REMEMBERED_MS, _CLEANUP_BATCHES
        )


def _expired_error() -> ServiceError:
    return ServiceError("TOKEN_EXPIRED", "Create a new device link.")


async def _find(tx: Transaction, device_link_id: str) -> Record:
    row = await tokens.find_device_link(tx, device_link_id)
    if row is None:
        raise ServiceError("DEVICE_LINK_NOT_FOUND")
    return row
