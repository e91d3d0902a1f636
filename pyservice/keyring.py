"""The keys of a data directory: the ring of MAC keys and the hash key, in one 0600 file.

Makes them at the first start and reads them afterwards. What is signed or hashed with them is the
native part's matter. Key bytes are never shown: not in messages, not in `repr`.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyservice.durable import write_file

FILE: Final = "keys.json"
_FORMAT: Final = 1
_KEY_BYTES: Final = 32


class KeyringError(Exception):
    """The key file cannot be used; the message says why and never what is in it."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """MAC keys by number, which of them signs, and the hash key, which is never rotated."""

    mac_keys: tuple[tuple[int, bytes], ...] = field(repr=False)
    current_key: int
    hash_key: bytes = field(repr=False)


def load_or_create(data_dir: Path) -> Keyring:
    """The ring of the directory; the first start makes one. Raises KeyringError."""
    path = data_dir / FILE
    if not path.exists():
        if any(data_dir.glob("journal/*")):
            # New keys would make every token of the journal a forgery, and nobody would know why.
            raise KeyringError(f"{path} is missing beside a journal: restore it from a backup")
        _create(data_dir)
    return load(data_dir)


def load(data_dir: Path) -> Keyring:
    """The ring of the directory. Raises KeyringError, also when others could read the file."""
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
        return _parse(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        # The cause quotes what it stumbled over, which may be a key.
        raise KeyringError(f"{path} is damaged: restore it from a backup") from None


def _parse(content: dict[str, object]) -> Keyring:
    if content["format"] != _FORMAT:
        raise ValueError
    listed = content["mac_keys"]
    current = content["current_key"]
    if not isinstance(listed, dict) or not isinstance(current, int):
        raise TypeError
    mac_keys = tuple((int(number), _key(text)) for number, text in listed.items())
    if current not in {number for number, _ in mac_keys}:
        raise ValueError
    return Keyring(mac_keys, current, _key(content["hash_key"]))


def _key(text: object) -> bytes:
    key = bytes.fromhex(str(text))
    if len(key) != _KEY_BYTES:
        raise ValueError
    return key


def _create(data_dir: Path) -> None:
    content = {
        "format": _FORMAT,
        "current_key": 1,
        "mac_keys": {"1": secrets.token_hex(_KEY_BYTES)},
        "hash_key": secrets.token_hex(_KEY_BYTES),
    }
    try:
        write_file(data_dir / FILE, json.dumps(content, indent=1).encode() + b"\n", mode=0o600)
    except OSError as error:
        raise KeyringError(f"{data_dir / FILE} cannot be written: {error.strerror}") from None
