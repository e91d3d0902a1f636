"""The content of a message in a few bytes: the same for the same content, of whatever process of one installation.

Who compares what with what is the planes' matter.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from google.protobuf.message import Message

_DIGEST_BYTES: Final = 16


def message_digest(message: Message) -> bytes:
    """16 bytes of SHA-256 over its deterministic encoding."""
    return sha256(message.SerializeToString(deterministic=True)).digest()[:_DIGEST_BYTES]
