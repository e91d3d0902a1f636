"""Key file of the control plane: numbered signing keys, and one hash key.

The signing keys sign device links and object URLs. The hash key hashes requests with an idempotency
key, and is never rotated. Key bytes never appear in messages or `repr`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyservice.durable_files import is_disk_full, remove_unfinished, write_file
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger

KEY_FILE: Final = "keys.json"
KEY_RETENTION_MS: Final = 6 * 3_600_000 + 60_000
"""Time that an old key is needed: the longest lifetime of a signature (an upload part), and a
minute for a signing in progress.
"""
_FORMAT: Final = 1
_KEY_BYTES: Final = 32

_log = get_logger("control")


class SigningKey(NamedTuple):
    number: int
    secret: bytes
    ended_ms: int | None = None

    def __repr__(self) -> str:
        return f"Key({self.number})"

    def derive(self, purpose: bytes) -> bytes:
        return hmac.digest(self.secret, purpose + b"\0", "sha256")


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Content of the key file. The signing keys are ordered from oldest to newest, and the newest
    signs.
    """

    signing: tuple[SigningKey, ...]
    hash_key: bytes = field(repr=False)

    @property
    def current(self) -> SigningKey:
        return self.signing[-1]

    def find_key(self, number: int) -> SigningKey | None:
        return next((key for key in self.signing if key.number == number), None)


class KeyRotation(NamedTuple):
    current: int
    kept_keys: list[int]
    dropped_keys: list[int]


class SigningKeyFile:
    def __init__(self, path: Path, keys: SigningKeys, clock_ms: Callable[[], int]) -> None:
        self._path = path
        self._now_ms = clock_ms
        self._turn = asyncio.Lock()
        self._rotating: asyncio.Task[KeyRotation] | None = None
        self._listeners: list[Callable[[SigningKeys], None]] = []
        self.now = keys

    def listen(self, listener: Callable[[SigningKeys], None]) -> None:
        """Calls `listener` with the current keys, and again with new keys before they are used."""
        self._listeners.append(listener)
        listener(self.now)

    @classmethod
    def load_or_create(
        cls, folder: Path, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> SigningKeyFile:
        """Loads the key file, or creates it at the first start."""
        path = folder / KEY_FILE
        remove_unfinished(path)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            created = SigningKeys((_new(1),), secrets.token_bytes(_KEY_BYTES))
            write_file(path, _text(created), mode=0o600)
            return cls(path, created, clock_ms)
        return cls(path, _decode(path, content), clock_ms)

    async def rotate(self, *, drop_unused: bool) -> KeyRotation:
        """Adds a signing key that signs from now on. Signatures of older keys remain valid.

        With `drop_unused`, deletes keys that have only expired signatures. Raises STORAGE_FULL
        without a change.
        """
        # Shielded: a cancelled caller must not leave a file with an unused key.
        self._rotating = asyncio.create_task(self._rotate(drop_unused))
        return await asyncio.shield(self._rotating)

    async def _rotate(self, drop_unused: bool) -> KeyRotation:
        async with self._turn:
            now_ms, before = self._now_ms(), self.now
            ended_key = before.current._replace(ended_ms=now_ms)
            older = [*before.signing[:-1], ended_key]
            kept_keys = [key for key in older if not drop_unused or _is_needed(key, now_ms)]
            after = replace(before, signing=(*kept_keys, _new(before.current.number + 1)))
            try:
                await asyncio.to_thread(write_file, self._path, _text(after), 0o600)
            except OSError as error:
                if is_disk_full(error):
                    raise ServiceError("STORAGE_FULL") from error
                raise
            self.now = after
            for listener in self._listeners:
                listener(after)
        dropped_keys = [key.number for key in older if key not in kept_keys]
        rotation = KeyRotation(
            after.current.number, [key.number for key in kept_keys], dropped_keys
        )
        _log.info(
            "keys rotated",
            current_key=rotation.current,
            kept=rotation.kept_keys,
            dropped=rotation.dropped_keys,
        )
        return rotation


def read_keys(path: Path) -> SigningKeys:
    """Returns the keys of a key file. Raises OSError."""
    return _decode(path, path.read_bytes())


def _is_needed(key: SigningKey, now_ms: int) -> bool:
    return key.ended_ms is None or now_ms <= key.ended_ms + KEY_RETENTION_MS


def _new(number: int) -> SigningKey:
    return SigningKey(number, secrets.token_bytes(_KEY_BYTES))


def _text(keys: SigningKeys) -> bytes:
    content = {
        "format": _FORMAT,
        "hash_key": keys.hash_key.hex(),
        "signing_keys": [
            {"number": key.number, "key": key.secret.hex(), "ended_ms": key.ended_ms}
            for key in keys.signing
        ],
    }
    return json.dumps(content, indent=1).encode() + b"\n"


def _decode(path: Path, content: bytes) -> SigningKeys:
    try:
        return _parse(json.loads(content))
    except (ValueError, KeyError, TypeError, IndexError):
        # The cause may quote a key.
        raise OSError(f"{path} is damaged: restore it from a backup") from None


def _parse(content: dict[str, Any]) -> SigningKeys:
    if content["format"] != _FORMAT:
        raise ValueError
    signing = tuple(
        SigningKey(int(fields["number"]), _bytes(fields["key"]), fields["ended_ms"])
        for fields in content["signing_keys"]
    )
    if [key.ended_ms is None for key in signing] != [False] * (len(signing) - 1) + [True]:
        raise ValueError
    return SigningKeys(signing, _bytes(content["hash_key"]))


def _bytes(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != _KEY_BYTES:
        raise ValueError
    return key
