"""Woken requests as they go from the public door to the one behind: many in one message, and their answers in another.

Pure. Who wakes, and what is sent when, is `held`'s; `woken` answers them behind the door.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from pyservice.edge.exchanges import Answer
from pyservice.edge.relayed import Wish
from pyservice.edge.upstream import Reply

PATH: Final = b"/-/woken"
"""Where the door behind takes them. The public door has no such route."""

_CONTENT_TYPE: Final = b"content-type"


class Asked(NamedTuple):
    """One woken request."""

    wish: Wish
    client: str
    """The client's address."""
    traceparent: str
    is_over: bool
    """It was held for as long as any is; nothing changed."""


def head(body: bytes) -> bytes:
    """The head of the message that has this body."""
    return (
        b"POST %b HTTP/1.1\r\nhost: control\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % (PATH, len(body))
    )


def write_asked(several: Iterable[Asked]) -> bytes:
    """The body of a message; `read_asked` is its inverse."""
    return orjson.dumps([_row_of(asked) for asked in several])


def _row_of(asked: Asked) -> tuple[Any, ...]:
    method, target, authorization = asked.wish
    return (
        method.decode("latin-1"),
        target.decode("latin-1"),
        None if authorization is None else authorization.decode("latin-1"),
        asked.client,
        asked.traceparent,
        asked.is_over,
    )


def read_asked(body: bytes) -> list[Asked]:
    """Raises ValueError for anything that `write_asked` did not write."""
    try:
        return [_asked_of(*row) for row in orjson.loads(body)]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a message of woken requests: {error}") from None


def _asked_of(
    method: str,
    target: str,
    authorization: str | None,
    client: str,
    traceparent: str,
    is_over: bool,
) -> Asked:
    wish = Wish(
        method.encode("latin-1"),
        target.encode("latin-1"),
        None if authorization is None else authorization.encode("latin-1"),
    )
    return Asked(wish, client, traceparent, is_over)


def write_answers(answers: Sequence[Answer]) -> bytes:
    """The body of the answer to a message. A body that several have in common is in it once."""
    places: dict[int, int] = {}
    bodies: list[bytes] = []
    rows: list[Any] = []
    for answer in answers:
        place = places.setdefault(id(answer.body), len(bodies))
        if place == len(bodies):
            bodies.append(answer.body)
        fields = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in answer.headers or ()
        ]
        rows.append((answer.status, answer.content_type.decode("latin-1"), fields, place))
    told = orjson.dumps((rows, [len(body) for body in bodies]))
    return b"".join((b"%d\n" % len(told), told, *bodies))


def read_replies(body: bytes) -> list[Reply]:
    """What `write_answers` wrote, in the order of the requests. Raises ValueError."""
    try:
        digits, _, _ = body[:20].partition(b"\n")
        start = len(digits) + 1
        end = start + int(digits)
        rows, lengths = orjson.loads(body[start:end])
        bodies: list[bytes] = []
        for length in lengths:
            bodies.append(body[end : end + length])
            end += length
        return [_reply_of(status, kind, fields, bodies[at]) for status, kind, fields, at in rows]
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not answers to woken requests: {error}") from None


def _reply_of(status: int, kind: str, fields: list[list[str]], body: bytes) -> Reply:
    found = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields}
    found[_CONTENT_TYPE] = kind.encode("latin-1")
    return Reply(status, found, body)
