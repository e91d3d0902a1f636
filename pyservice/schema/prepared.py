"""An answer whose JSON text is at hand already, so that nobody writes it again from its message.

For what is large, is kept as text, and is read far more often than it is made. Both doors take it in
the place of the message that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message


class Prepared(Message):
    """Stands for the message that `make` makes. `body` is that message as HTTP would write it."""

    __slots__ = ("_make", "body")

    def __init__(self, body: bytes, make: Callable[[], Message]) -> None:
        self.body = body
        self._make = make

    def SerializeToString(self, **options: Any) -> bytes:
        """The message as gRPC sends it."""
        return self._make().SerializeToString(**options)
