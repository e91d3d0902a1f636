"""Key file of a data directory (mode 0600). It contains the hash key and the MAC keys for tokens.

Key bytes never appear in messages or `repr`.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyservice.durable_files import remove_unfinished, write_file

FILE: Final = "keys.json"
_FORMAT: Final = 1
_RESTORED_FORMAT: Final = 2
"""A release that does not know restored keys refuses this format. It would accept all tokens of them."""
_KEY_BYTES: Final = 32
_LAST_NUMBER: Final = 65_535


class KeyringError(Exception):
    """The key file is missing or unusable."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """MAC keys by number, the number of the MAC key that signs new tokens, and the hash key.

    The hash key hashes values that must not be stored in the clear, such as client addresses. It is
    never rotated.
    """

    mac_keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    current_key: int
    hash_key: bytes = field(repr=False)
    restored_keys: frozenset[int] = field(default=frozenset(), repr=False)
    """Numbers of keys from before a restore. They verify only `pub_` and `dev_` tokens."""
    first_epoch: int = field(default=1, repr=False)
    """The epoch of the journal is at least this one, so that it is above those of a lost journal."""
    facts_stream: str = field(default="", repr=False)
    """Name of the stream of facts, and of the last restore. Empty for the name that the hash key gives."""


def load_or_create(data_dir: Path) -> Keyring:
    path = data_dir / FILE
    remove_unfinished(path)
    if not path.exists():
        if any(data_dir.glob("journal/*")):
            # New keys would invalidate every token of the journal.
            raise KeyringError(f"{path} is missing beside a journal: restore it from a backup")
        _create(data_dir)
    return load(data_dir)


def load(data_dir: Path) -> Keyring:
    path = data_dir / FILE
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except OSError as error:
        raise KeyringError(f"{path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise KeyringError(f"{path} is open to others (mode {mode:04o}): chmod 600 it")
    try:
        return parse(content)
    except ValueError:
        # The cause may quote a key.
        raise KeyringError(f"{path} is damaged: restore it from a backup") from None


def rotate(data_dir: Path) -> Keyring:
    """Creates and stores a key that signs all new tokens. Older keys still verify tokens."""
    ring = load(data_dir)
    # Numbers are not reused: an old token must not verify with a new key.
    number = max(number for number, _ in ring.mac_keys) + 1
    if number > _LAST_NUMBER:
        raise KeyringError(f"{data_dir / FILE} has used up the numbers of its keys")
    new_key = (number, secrets.token_bytes(_KEY_BYTES))
    new_ring = replace(ring, mac_keys=(*ring.mac_keys, new_key), current_key=number)
    _write(data_dir, new_ring)
    return new_ring


def drop(data_dir: Path, numbers: Collection[int]) -> Keyring:
    """Permanently deletes the keys with these numbers, except the key that signs new tokens.

    Tokens that a deleted key signed become invalid. On an error no key is deleted.
    """
    ring = load(data_dir)
    mac_keys = tuple(
        key for key in ring.mac_keys if key[0] == ring.current_key or key[0] not in numbers
    )
    kept = ring.restored_keys.intersection(number for number, _ in mac_keys)
    new_ring = replace(ring, mac_keys=mac_keys, restored_keys=kept)
    _write(data_dir, new_ring)
    return new_ring


def restored(ring: Keyring, first_epoch: int) -> Keyring:
    """Returns the keys of a service that continues without its journal.

    A new key signs all tokens. Tokens of earlier lobbies and players never become valid.
    """
    number = max(number for number, _ in ring.mac_keys) + 1
    return replace(
        ring,
        mac_keys=(*ring.mac_keys, (number, secrets.token_bytes(_KEY_BYTES))),
        current_key=number,
        restored_keys=frozenset(number for number, _ in ring.mac_keys),
        first_epoch=first_epoch,
        facts_stream=secrets.token_hex(16),
    )


def parse(content: bytes) -> Keyring:
    """Reads the content of a key file. Raises ValueError."""
    try:
        return _parse(json.loads(content))
    except (KeyError, TypeError, AttributeError):
        raise ValueError from None


def _parse(content: dict[str, Any]) -> Keyring:
    if content["format"] not in (_FORMAT, _RESTORED_FORMAT):
        raise ValueError
    texts = content["mac_keys"]
    current = content["current_key"]
    if not isinstance(texts, dict) or not isinstance(current, int):
        raise TypeError
    mac_keys = tuple((int(number), _key(text)) for number, text in texts.items())
    if current not in {number for number, _ in mac_keys}:
        raise ValueError
    return Keyring(
        mac_keys,
        current,
        _key(content["hash_key"]),
        frozenset(content.get("restored_keys", ())),
        content.get("first_epoch", 1),
        content.get("facts_stream", ""),
    )


def _key(text: object) -> bytes:
    key = bytes.fromhex(str(text))
    if len(key) != _KEY_BYTES:
        raise ValueError
    return key


def _create(data_dir: Path) -> None:
    ring = Keyring(((1, secrets.token_bytes(_KEY_BYTES)),), 1, secrets.token_bytes(_KEY_BYTES))
    try:
        _write(data_dir, ring)
    except OSError as error:
        raise KeyringError(f"{data_dir / FILE} cannot be written: {error.strerror}") from None


def _write(data_dir: Path, ring: Keyring) -> None:
    write_file(data_dir / FILE, text(ring), mode=0o600)


def text(ring: Keyring) -> bytes:
    """Returns the content of a key file."""
    content: dict[str, object] = {
        "format": _RESTORED_FORMAT if ring.facts_stream else _FORMAT,
        "current_key": ring.current_key,
        "mac_keys": {str(number): key.hex() for number, key in ring.mac_keys},
        "hash_key": ring.hash_key.hex(),
    }
    if ring.facts_stream:
        content["restored_keys"] = sorted(ring.restored_keys)
        content["first_epoch"] = ring.first_epoch
        content["facts_stream"] = ring.facts_stream
    return json.dumps(content, indent=1).encode() + b"\n"
