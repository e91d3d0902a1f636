"""Digest of a protobuf message. All processes of one installation give equal content an equal
digest.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from google.protobuf.message import Message

_DIGEST_BYTES: Final = 16


def message_digest(message: Message) -> bytes:
    return sha256(message.SerializeToString(deterministic=True)).digest()[:_DIGEST_BYTES]
