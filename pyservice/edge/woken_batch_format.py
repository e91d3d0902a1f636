"""Wire format between the public and the internal server: batches of long polls that a change woke."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import HttpResponse
from pyservice.edge.unix_http_client import Reply

PATH: Final = b"/-/woken"
"""Path on the internal server. The public server has no such route."""

_CONTENT_TYPE: Final = b"content-type"
_LENGTHS: Final = re.compile(rb"(\d{1,10}) (\d{1,10})\n")
_LENGTHS_MAX: Final = 22


class WokenRequest(NamedTuple):
    """One long poll that woke after a change, as a part of a batch."""

    request_key: RequestKey
    client: str
    traceparent: str
    is_over: bool


def head(body: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: control\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % (PATH, len(body))
    )


def write_requests(requests: Iterable[WokenRequest]) -> bytes:
    return orjson.dumps([_row_of(request) for request in requests])


def _row_of(request: WokenRequest) -> tuple[Any, ...]:
    method, target, authorization = request.request_key
    return (
        method.decode("latin-1"),
        target.decode("latin-1"),
        None if authorization is None else authorization.decode("latin-1"),
        request.client,
        request.traceparent,
        request.is_over,
    )


def read_requests(body: bytes) -> list[WokenRequest]:
    try:
        return [_request_of(*row) for row in orjson.loads(body)]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a valid watch batch: {error}") from None


def _request_of(
    method: str,
    target: str,
    authorization: str | None,
    client: str,
    traceparent: str,
    is_over: bool,
) -> WokenRequest:
    request_key = RequestKey(
        method.encode("latin-1"),
        target.encode("latin-1"),
        None if authorization is None else authorization.encode("latin-1"),
    )
    return WokenRequest(request_key, client, traceparent, is_over)


def write_responses(responses: Sequence[tuple[int, HttpResponse]]) -> bytes:
    indexes: dict[int, int] = {}
    bodies: list[bytes] = []
    rows: list[Any] = []
    for number, response in responses:
        index = indexes.setdefault(id(response.body), len(bodies))
        if index == len(bodies):
            bodies.append(response.body)
        fields = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in response.headers or ()
        ]
        kind = response.content_type.decode("latin-1")
        rows.append((number, response.status, kind, fields, index))
    lengths = [len(body) for body in bodies]
    table = orjson.dumps((rows, lengths))
    return b"".join((b"%d %d\n" % (len(table), sum(lengths)), table, *bodies))


class WokenReplyReader:
    """Reads the responses of a batch from the pieces of an HTTP body, however the body is split."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._length_bytes = 0
        self._missing_until = 1

    def feed(self, data: bytes) -> list[tuple[int, Reply]]:
        self._pieces.append(data)
        self._length_bytes += len(data)
        if self._length_bytes < self._missing_until:
            return []
        replies: list[tuple[int, Reply]] = []
        rest = b"".join(self._pieces)
        while rest:
            lengths = _LENGTHS.match(rest)
            if lengths is None and len(rest) >= _LENGTHS_MAX:
                raise ValueError("not a valid watch batch reply: no lengths")
            begin = lengths.end() if lengths else 0
            end = begin + int(lengths[1]) + int(lengths[2]) if lengths else len(rest) + 1
            self._missing_until = end
            if len(rest) < end:
                break
            assert lengths is not None
            replies += _read_part(rest[begin:end], int(lengths[1]))
            rest = rest[end:]
            self._missing_until = 1
        self._pieces = [rest] if rest else []
        self._length_bytes = len(rest)
        return replies

    def end(self) -> None:
        if self._pieces:
            raise ValueError("truncated watch batch reply")


def _read_part(part: bytes, table_bytes: int) -> list[tuple[int, Reply]]:
    try:
        rows, lengths = orjson.loads(part[:table_bytes])
        bodies: list[bytes] = []
        end = table_bytes
        for length in lengths:
            bodies.append(part[end : end + length])
            end += length
        return [
            (int(number), _reply_of(status, kind, fields, bodies[index]))
            for number, status, kind, fields, index in rows
        ]
    except (TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a valid watch batch reply: {error}") from None


def _reply_of(status: int, kind: str, fields: list[list[str]], body: bytes) -> Reply:
    headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in fields}
    headers[_CONTENT_TYPE] = kind.encode("latin-1")
    return Reply(status, headers, body)
