"""Wire format of batches of woken long polls between the public and the internal server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import Answer
from pyservice.edge.unix_http_client import Reply

PATH: Final = b"/-/woken"
"""Path on the internal server. The public server has no such route."""

_CONTENT_TYPE: Final = b"content-type"
_LENGTHS: Final = re.compile(rb"(\d{1,10}) (\d{1,10})\n")
"""Lengths of the response table and of the bodies."""
_LENGTHS_MAX: Final = 22


class BatchedRequest(NamedTuple):
    """One long poll that woke after a change, as a part of a batch."""

    wish: RequestKey
    client: str
    traceparent: str
    is_over: bool


def head(body: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: control\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % (PATH, len(body))
    )


def write_asked(several: Iterable[BatchedRequest]) -> bytes:
    return orjson.dumps([_row_of(asked) for asked in several])


def _row_of(asked: BatchedRequest) -> tuple[Any, ...]:
    method, target, authorization = asked.wish
    return (
        method.decode("latin-1"),
        target.decode("latin-1"),
        None if authorization is None else authorization.decode("latin-1"),
        asked.client,
        asked.traceparent,
        asked.is_over,
    )


def read_asked(body: bytes) -> list[BatchedRequest]:
    try:
        return [_asked_of(*row) for row in orjson.loads(body)]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a valid watch batch: {error}") from None


def _asked_of(
    method: str,
    target: str,
    authorization: str | None,
    client: str,
    traceparent: str,
    is_over: bool,
) -> BatchedRequest:
    wish = RequestKey(
        method.encode("latin-1"),
        target.encode("latin-1"),
        None if authorization is None else authorization.encode("latin-1"),
    )
    return BatchedRequest(wish, client, traceparent, is_over)


def write_answers(answers: Sequence[tuple[int, Answer]]) -> bytes:
    places: dict[int, int] = {}
    bodies: list[bytes] = []
    rows: list[Any] = []
    for number, answer in answers:
        place = places.setdefault(id(answer.body), len(bodies))
        if place == len(bodies):
            bodies.append(answer.body)
        fields = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in answer.headers or ()
        ]
        kind = answer.content_type.decode("latin-1")
        rows.append((number, answer.status, kind, fields, place))
    lengths = [len(body) for body in bodies]
    told = orjson.dumps((rows, lengths))
    return b"".join((b"%d %d\n" % (len(told), sum(lengths)), told, *bodies))


class BatchReplyReader:
    """Reads the responses of a batch from the pieces of an HTTP body, however the body is split."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length_bytes = 0
        self._wanted_bytes = 1

    def feed(self, data: bytes) -> list[tuple[int, Reply]]:
        self._pieces.append(data)
        self._length_bytes += len(data)
        if self._length_bytes < self._wanted_bytes:
            return []
        replies: list[tuple[int, Reply]] = []
        rest = b"".join(self._pieces)
        while rest:
            lengths = _LENGTHS.match(rest)
            if lengths is None and len(rest) >= _LENGTHS_MAX:
                raise ValueError("not a valid watch batch reply: no lengths")
            begin = lengths.end() if lengths else 0
            end = begin + int(lengths[1]) + int(lengths[2]) if lengths else len(rest) + 1
            self._wanted_bytes = end
            if len(rest) < end:
                break
            assert lengths is not None
            replies += _read_part(rest[begin:end], int(lengths[1]))
            rest = rest[end:]
            self._wanted_bytes = 1
        self._pieces = [rest] if rest else []
        self._length_bytes = len(rest)
        return replies

    def end(self) -> None:
        if self._pieces:
            raise ValueError("truncated watch batch reply")


def _read_part(part: bytes, told_bytes: int) -> list[tuple[int, Reply]]:
    try:
        rows, lengths = orjson.loads(part[:told_bytes])
        bodies: list[bytes] = []
        end = told_bytes
        for length in lengths:
            bodies.append(part[end : end + length])
            end += length
        return [
            (int(number), _reply_of(status, kind, fields, bodies[at]))
            for number, status, kind, fields, at in rows
        ]
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a valid watch batch reply: {error}") from None


def _reply_of(status: int, kind: str, fields: list[list[str]], body: bytes) -> Reply:
    found = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields}
    found[_CONTENT_TYPE] = kind.encode("latin-1")
    return Reply(status, found, body)
