from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from pyservice.calls import WaitForChange
from pyservice.edge.http_messages import PROBLEM, Headers, HttpResponse
from pyservice.edge.unix_http_client import Reply
from pyservice.observability.metrics import OK
from pyservice.pb.errors import TABLE
from pyservice.transport import client_address, request_headers
from pyservice.transport.client_address import Address

CLIENT: Final = request_headers.INTERNAL_CLIENT.encode()
HELD: Final = request_headers.INTERNAL_HELD.encode()
WOKEN: Final = request_headers.HELD_WOKEN.encode()
OVER: Final = request_headers.HELD_EXPIRED.encode()
PARK: Final = request_headers.INTERNAL_WAIT.encode()
AUTHORIZATION: Final = b"authorization"

# Hop-by-hop headers (RFC 9110, 7.6.1), and headers that the public server writes itself.
_NOT_PASSED: Final = frozenset(
    b"host content-length transfer-encoding connection keep-alive te trailer upgrade expect"
    b" proxy-connection proxy-authorization proxy-authenticate origin traceparent tracestate"
    b" forwarded x-forwarded-for x-coords".split()
)
_OURS: Final = b"x-hosting-"
_NOT_ANSWERED: Final = frozenset(
    b"connection keep-alive transfer-encoding content-length content-type x-ray-id".split()
)


class RequestKey(NamedTuple):
    """Key of a request without a body. Requests with the same key get the same response."""

    method: bytes
    target: bytes
    authorization: bytes | None


def fields_of(request_key: RequestKey) -> Headers:
    return [] if request_key.authorization is None else [(AUTHORIZATION, request_key.authorization)]


def passed_headers(fields: dict[bytes, bytes]) -> Headers:
    connection = fields.get(b"connection", b"").lower()
    own_hop = {name.strip() for name in connection.split(b",")} if connection else ()
    return [
        field
        for field in fields.items()
        if field[0] not in _NOT_PASSED
        and not field[0].startswith(_OURS)
        and (field[0] not in own_hop or field[0] == AUTHORIZATION)
    ]


def head(
    request_key: RequestKey,
    client: Address,
    traceparent: str,
    fields: Headers,
    length_bytes: int | None,
) -> bytes:
    lines = [
        b"%b %b HTTP/1.1\r\nhost: control\r\n%b: %b\r\ntraceparent: %b\r\n"
        % (
            request_key.method,
            request_key.target,
            CLIENT,
            str(client).encode(),
            traceparent.encode(),
        )
    ]
    lines += [b"%b: %b\r\n" % field for field in fields]
    if length_bytes is not None:
        lines.append(b"content-length: %d\r\n" % length_bytes)
    lines.append(b"\r\n")
    return b"".join(lines)


def client_of(fields: dict[bytes, bytes]) -> Address | None:
    text = fields.get(CLIENT)
    return None if text is None else client_address.parse_address(text.decode("latin-1"))


def park_field(park: WaitForChange) -> tuple[bytes, bytes]:
    return PARK, request_headers.wait_text(park).encode()


def park_of(reply: Reply) -> WaitForChange | None:
    text = reply.fields.get(PARK)
    return None if text is None else request_headers.read_wait(text.decode("ascii"))


def code_of(reply: Reply) -> str:
    if reply.status < 400:
        return OK
    try:
        code = orjson.loads(reply.body)["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "INTERNAL"
    return code if code in TABLE else "INTERNAL"


def answer_of(
    reply: Reply, ray_id: str, headers: Headers | None, sent_ray_id: str | None = None
) -> HttpResponse:
    fields, body = reply.fields, reply.body
    content_type = fields.get(b"content-type", b"")
    if sent_ray_id is not None and sent_ray_id != ray_id and content_type == PROBLEM:
        body = body.replace(sent_ray_id.encode(), ray_id.encode())
    others = [field for field in fields.items() if field[0] not in _NOT_ANSWERED]
    if headers:
        others += headers
    return HttpResponse(reply.status, body, ray_id, content_type, others or None)
