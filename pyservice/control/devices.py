"""Device links (contract devices.links.get; decisions 8.7): made by a device, completed by a person, told to the
device.

A link's token is signed with a key of the control folder, and the device's cloud_ token is made from the same key:
every GET can tell it, and only its hash is in the records.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import UUID

from pyservice.calls import Caller, Park
from pyservice.control import access
from pyservice.control.access import scope_of
from pyservice.control.changes import Changes, now_ms
from pyservice.control.links import Links
from pyservice.durable import write_file
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds, format_uuid
from pyservice.pb.hosting.v1 import devices_pb2 as pb
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.storage import devices, numbers, tokens
from pyservice.storage.database import Database, Record, Transaction
from pyservice.watch import Topics

LIVES_MS: Final = 10 * 60_000
"""How long a link can be completed and asked for (decisions 3)."""
_REMEMBERED_MS: Final = 24 * 3_600_000
Make = Callable[[Transaction], Awaitable[pb.PrepareDeviceLinkResponse]]
_PRUNE_EVERY_MS: Final = 60_000
KEPT_MAX: Final = 100_000
"""Links that were not completed, and remembered answers of calls without a token: whoever likes can make them."""
_PORTIONS_AT_ONCE: Final = 10
"""More than are made meanwhile, and not so many that a caller waits long for what others left."""
_KEY_FILE: Final = "link.key"
_KEY_BYTES: Final = 32
_LOST: Final = "links that wait become invalid, and requests of the last 24 h cannot be repeated"
_KIND: Final = "link_"
_BODY: Final = struct.Struct(">16sQ")


class LinkKey:
    """Signs link tokens and makes the tokens of devices; other secrets of the control folder are derived from it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def load_or_create(cls, folder: Path) -> LinkKey:
        """From a 0600 file of the folder. Raises OSError, also when the file was damaged."""
        path = folder / _KEY_FILE
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            secret = secrets.token_bytes(_KEY_BYTES)
            write_file(path, secret, mode=0o600)
        if len(secret) != _KEY_BYTES:
            raise OSError(f"{path}: is not a key; remove it, and {_LOST}")
        return cls(secret)

    def link_token(self, device_link_id: str, expires_ms: int) -> str:
        """The same for the same link."""
        body = _BODY.pack(UUID(device_link_id).bytes, expires_ms)
        return _KIND + _text(body + self._mac(b"link", body))

    def read(self, link_token: str) -> tuple[str, int]:
        """Id and end of a link that we signed. Raises TOKEN_INVALID."""
        raw = _bytes(link_token.removeprefix(_KIND)) if link_token.startswith(_KIND) else b""
        body, mac = raw[: _BODY.size], raw[_BODY.size :]
        if not hmac.compare_digest(mac, self._mac(b"link", body)):
            raise ServiceError("TOKEN_INVALID", "Give the device_link_token as it was answered.")
        link, expires_ms = _BODY.unpack(body)
        return format_uuid(link), expires_ms

    def device_token(self, device_link_id: str) -> str:
        """The cloud_ token of the device whose link was completed."""
        return f"cloud_{_text(self._mac(b'cloud', UUID(device_link_id).bytes))}"

    def message_mac_key(self) -> bytes:
        """The key under which `Changes` remembers messages, 32 bytes: the same over a restart."""
        return self._mac(b"messages", b"")

    def _mac(self, purpose: bytes, body: bytes) -> bytes:
        return hmac.digest(self._secret, purpose + b"\0" + body, "sha256")


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Of a text in the one form that `_text` gives, empty for any other."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
    return raw if _text(raw) == text else b""


def _topic(device_link_id: str) -> str:
    return f"device_link:{device_link_id}"


class Devices:
    """The operations on device links."""

    def __init__(
        self,
        database: Database,
        changes: Changes,
        ids: RecordIds,
        topics: Topics,
        key: LinkKey,
        links: Links,
        clock_ms: Callable[[], int] = now_ms,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self._database = database
        self._changes = changes
        self._ids = ids
        self._topics = topics
        self._key = key
        self._links = links
        self._now_ms = clock_ms
        self._prune_ms = 0
        self._kept_max = kept_max
        self._unpruned = 0

    async def prepare(
        self, request: pb.PrepareDeviceLinkRequest, caller: Caller
    ) -> pb.PrepareDeviceLinkResponse:
        """Decisions 8.7. Whoever likes makes them: of those that nobody completed the oldest go."""

        async def change(tx: Transaction) -> pb.PrepareDeviceLinkResponse:
            now, device_link_id = self._now_ms(), self._ids.new()
            await devices.add(tx, device_link_id, now, now + LIVES_MS)
            # The token is a secret and not remembered: it is made again from the record.
            return pb.PrepareDeviceLinkResponse(device_link_id=device_link_id)

        await self._prune()
        row = await self._made(request, caller, change)
        if row is None:
            # The answer was remembered for longer than its link is kept: there is nothing to repeat.
            await self._changes.forget(caller)
            row = await self._made(request, caller, change)
        if row is None:
            raise ServiceError("OVERLOADED")
        token = self._key.link_token(row.device_link_id, row.expires_ms)
        return pb.PrepareDeviceLinkResponse(
            device_link_id=row.device_link_id,
            device_link_token=token,
            device_link_url=f"{self._links.hub_url}/devices/link#{token}",
        )

    async def _made(
        self, request: pb.PrepareDeviceLinkRequest, caller: Caller, change: Make
    ) -> Record | None:
        """The link that this call made, None when it is gone already."""
        answer = await self._changes.make(caller, request, pb.PrepareDeviceLinkResponse, change)
        async with self._database.read() as tx:
            return await devices.find(tx, answer.device_link_id)

    async def _prune(self) -> None:
        """Now and then: what ended long ago goes, and the oldest of what is too many."""
        now = self._now_ms()
        self._unpruned += 1
        if now < self._prune_ms and self._unpruned <= self._kept_max // 100:
            return
        # Before anything is waited for: nobody else does it meanwhile.
        self._prune_ms, self._unpruned = now + _PRUNE_EVERY_MS, 0
        most = _PORTIONS_AT_ONCE
        await devices.forget_before(self._database, now - _REMEMBERED_MS, most)
        await devices.forget_uncompleted_beyond(self._database, self._kept_max, most)
        await numbers.forget_of_anonymous_beyond(self._database, self._kept_max, most)

    async def get(
        self, request: pb.GetDeviceLinkRequest, caller: Caller
    ) -> pb.GetDeviceLinkResponse | Park:
        """Contract devices.links.get. Raises TOKEN_INVALID, TOKEN_EXPIRED, DEVICE_LINK_NOT_FOUND."""
        device_link_id = self._good(request.device_link_token)
        topic = _topic(device_link_id)
        index = self._topics.index_of(topic)
        watch_index = request.watch_index if request.HasField("watch_index") else None
        parked = self._topics.park_or_none(watch_index, caller.call, topic)
        if parked is not None:
            return parked
        async with self._database.read() as tx:
            row = await _find(tx, device_link_id)
        is_complete = row.complete_ms is not None
        return pb.GetDeviceLinkResponse(
            cloud_token=self._key.device_token(device_link_id) if is_complete else None,
            watch=envelope_pb2.Watch(index=index),
        )

    async def complete(
        self, request: pb.CompleteDeviceLinkRequest, caller: Caller
    ) -> pb.CompleteDeviceLinkResponse:
        """Decisions 8.7. Raises TOKEN_INVALID, TOKEN_EXPIRED, GAME_NOT_FOUND, DEVICE_LINK_NOT_FOUND, _USED."""
        device_link_id = self._good(request.device_link_token)

        async def change(tx: Transaction) -> pb.CompleteDeviceLinkResponse:
            game = await access.game(tx, caller, request.game_id)
            await _find(tx, device_link_id)
            now, token_id = self._now_ms(), self._ids.new()
            if not await devices.complete(tx, device_link_id, game.game_id, token_id, now):
                raise ServiceError("DEVICE_LINK_USED")
            token_hash = sha256(self._key.device_token(device_link_id).encode()).digest()
            identity_id = scope_of(caller).identity_id
            await tokens.add_cloud(
                tx, token_id, token_hash, identity_id, game.group_id, game.game_id, now
            )
            tx.afterwards(lambda: self._topics.bump(_topic(device_link_id)))
            return pb.CompleteDeviceLinkResponse()

        return await self._changes.make(caller, request, pb.CompleteDeviceLinkResponse, change)

    def _good(self, link_token: str) -> str:
        """The link whose token this is. Raises TOKEN_INVALID, TOKEN_EXPIRED."""
        device_link_id, expires_ms = self._key.read(link_token)
        if expires_ms <= self._now_ms():
            raise ServiceError("TOKEN_EXPIRED", "Make a new device link.")
        return device_link_id


async def _find(tx: Transaction, device_link_id: str) -> Record:
    row = await devices.find(tx, device_link_id)
    if row is None:
        raise ServiceError("DEVICE_LINK_NOT_FOUND")
    return row
