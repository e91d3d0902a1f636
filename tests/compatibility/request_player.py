"""Player of recorded requests over HTTP/1.1, HTTP/2 and gRPC. Returns normalized answers.

A request has names such as `<<lobby-1.token>>` in place of the ids and tokens of one run.
"""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import status_pb2

from pyservice.schema.methods import METHODS
from tests.compatibility.request_connections import Http1Connection, Http2Connection, RawAnswer
from tests.support.twin import SPELLINGS

FILE: Final = Path(__file__).parent / "recorded_answers.jsonl.xz"
HTTP1, HTTP2, GRPC = "http/1.1", "http/2", "grpc"
BY_PATH: Final = {method.grpc_path: method for method in METHODS.values()}
_NAME: Final = re.compile(rb"<<([a-z0-9.-]+)(?:\|([a-z]+))?>>")
_VALUE: Final = re.compile(
    r"(cloud|env|pub|dev|lobby|player)_[A-Za-z0-9_-]{20,}"
    r"|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
)
_LENGTH: Final = re.compile(rb"<length([+-]\d+)?>")
_SECONDS: Final = re.compile(r"\b\d{4,} ?s\b|\b\d{4,}(?= seconds)")

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    over: str
    operation: str
    head: str
    """Request line and headers as HTTP/1.1 writes them, over each transport."""
    body: str = ""
    """In gRPC: the fields of the message as JSON."""
    change: str = ""
    """Changes of the encoded gRPC message, such as `cut` and `tail:00`, with spaces between them."""
    tail: str = ""
    """Bytes after the body."""
    peer: str = "127.0.0.1"
    service: str = "main"
    lobby: str = ""
    """Name of the lobby that a successful attach creates."""
    is_alone: bool = False
    """Whether the request has a connection of its own."""

    def to_json(self) -> dict[str, Any]:
        """Returns the attributes that are not the default."""
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}


def recorded() -> Iterator[tuple[Request, list[Answer]]]:
    with lzma.open(FILE, "rt") as lines:
        for line in lines:
            request, answers = json.loads(line)
            yield Request(**request), answers


class UnknownName(Exception):
    """A request uses an id or token that an earlier request should have returned."""


@dataclass
class Names:
    values: dict[str, str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: str) -> None:
        self.values[name] = value
        self._names.setdefault(value, name)

    def name_of(self, value: str) -> str | None:
        return self._names.get(value)

    def fill(self, template: bytes) -> bytes:
        def value(match: re.Match[bytes]) -> bytes:
            name = match[1].decode()
            if name not in self.values:
                raise UnknownName(name)
            text = self.values[name]
            return (SPELLINGS[match[2].decode()](text) if match[2] else text).encode()

        return _NAME.sub(value, template)

    def hide(self, text: str) -> str:
        """Replaces the ids and tokens in a text by their names."""

        def name(match: re.Match[str]) -> str:
            known = self._names.get(match[0])
            return f"<<{known}>>" if known else f"<{match[1] or 'id'}>"

        return _VALUE.sub(name, text)


class RequestPlayer:
    def __init__(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        """`addresses` has the addresses of each service."""
        self.names = Names()
        self.players: list[tuple[str, str]] = []
        """Name and lobby of each player token, the oldest first."""
        self._addresses = addresses
        self._connections: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def play(self, number: int, request: Request) -> list[Answer]:
        """Sends the request and returns its answers. `number` is its position, from which its player tokens have
        their names.
        """
        try:
            raw_answers = self._send(request)
        except UnknownName as missing:
            return [{"unknown name": str(missing)}]
        for raw in raw_answers:
            self._save(number, request, raw)
        return [self._normalized(request, raw) for raw in raw_answers] or [{"status": "closed"}]

    def _connection(self, kind: type[Any], door: str, request: Request) -> Any:
        host, _, port = self._addresses[request.service][door].rpartition(":")
        key = (request.service, kind.__name__, door, request.peer)
        connection = self._connections.get(key)
        if connection is None or not connection.is_open or request.is_alone:
            if connection is not None:
                connection.close()
            connection = self._connections[key] = kind((host, int(port)), request.peer)
        return connection

    def _send(self, request: Request) -> list[RawAnswer]:
        head = self.names.fill(request.head.encode("latin-1"))
        if request.over == GRPC:
            fields = json.loads(self.names.fill(request.body.encode()))
            path = request.head.split(" ", 2)[1]
            data = _grpc_frame(path, fields, request.change)
            return [self._connection(Http2Connection, "grpc", request).ask(head, data)]
        body = self.names.fill(request.body.encode("latin-1"))
        head = _LENGTH.sub(lambda match: b"%d" % max(0, len(body) + int(match[1] or 0)), head)
        if request.over == HTTP2:
            return [self._connection(Http2Connection, "http", request).ask(head, body)]
        if request.change == "chunked":
            half = len(body) // 2
            chunks = [one for one in (body[:half], body[half:]) if one]
            body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
        connection = self._connection(Http1Connection, "http", request)
        tail = self.names.fill(request.tail.encode("latin-1"))
        answers: list[RawAnswer] = connection.ask(head, body + tail, 2 if tail else 1)
        if request.is_alone:
            connection.close()
        return answers

    def _save(self, number: int, request: Request, raw: RawAnswer) -> None:
        """Names the ids and tokens of a successful answer."""
        content = _grpc_message(request, raw) if request.over == GRPC else _parsed(raw.body)
        if raw.status != 200 or not isinstance(content, dict):
            return
        if "lobby_token" in content:
            lobby = request.lobby or f"lobby-{number}"
            self.names.put(f"{lobby}.id", content["lobby_id"])
            self.names.put(f"{lobby}.token", content["lobby_token"])
        if "cursor" in content:
            self.names.values["cursor"] = content["cursor"]
        players = content.get("players") or [content["player"]] if "player" in content else []
        lobby = (self.names.name_of(content["lobby"]["lobby_id"]) or "") if players else ""
        for position, player in enumerate(players):
            name = f"player-{number}.{position}"
            if self.names.name_of(player["token"]) is None:
                self.names.put(name, player["token"])
                self.players.append((name, lobby.removesuffix(".id")))

    def _normalized(self, request: Request, raw: RawAnswer) -> Answer:
        ray_id = dict(raw.headers).get("x-ray-id", "")
        hidden = ray_id if ray_id in request.head else "<ray>"
        headers: dict[str, str] = {}
        for name, value in sorted(raw.headers):
            if name == "content-length" and int(value) == len(raw.body):
                value = "<length>"
            if name == "date" or (name == "retry-after" and len(value) > 3):
                value = f"<{name}>"
            headers[name] = f"{headers[name]} | {value}" if name in headers else value
        answer: Answer = {"status": raw.status, "headers": headers}
        if request.over == GRPC:
            answer |= _grpc_content(request, raw, headers)
        else:
            # The bytes of a state count. Of other bodies, only the content counts.
            is_state = (request.operation, raw.status) == ("get_state", 200)
            answer["body"] = _text(raw.body) if is_state else _parsed(raw.body)
        if isinstance(answer["body"], dict) and "cursor" in answer["body"]:
            answer["body"]["cursor"] = "<cursor>"
        text = self.names.hide(json.dumps(answer, sort_keys=True))
        text = text.replace(ray_id, hidden) if ray_id else text
        text = _SECONDS.sub("<seconds>", text) if request.service == "limited" else text
        normalized: Answer = json.loads(text)
        return normalized


def code_of(answer: Answer) -> str:
    """Returns the code of the service, or the status of an answer without one."""
    body = answer.get("body")
    for detail in answer.get("details", ()):
        if "reason" in detail:
            return str(detail["reason"])
    if isinstance(body, dict) and "code" in body:
        return str(body["code"])
    if answer.get("grpc", "0") == "0" and answer.get("status") == 200:
        return "OK"
    return " ".join(str(answer[name]) for name in ("status", "grpc") if name in answer)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def _parsed(body: bytes) -> Any:
    """Returns the content of JSON, or other bytes as text."""
    try:
        return json.loads(body)
    except ValueError:
        return _text(body)


def _grpc_frame(path: str, fields: Any, changes: str) -> bytes:
    method = BY_PATH.get(path)
    data = (
        ParseDict(fields, method.request()).SerializeToString(deterministic=True) if method else b""
    )
    compressed, length_error, is_twice = 0, 0, False
    for change in changes.split():
        match change.split(":"):
            case ["cut"]:
                data = data[:-1]
            case ["repeat"]:
                data += data
            case ["tail", content]:
                data += bytes.fromhex(content)
            case ["gzip"]:
                data, compressed = gzip.compress(data, mtime=0), 1
            case ["flag"]:
                compressed = 1
            case ["length", difference]:
                length_error = int(difference)
            case ["twice"]:
                is_twice = True
            case ["none"]:
                return b""
    frame = bytes([compressed]) + max(0, len(data) + length_error).to_bytes(4, "big") + data
    return frame * 2 if is_twice else frame


def _grpc_message(request: Request, raw: RawAnswer) -> Any:
    """Returns the fields of the message, or the bytes of a message that is unknown or compressed."""
    method = BY_PATH.get(request.head.split(" ", 2)[1])
    if method is None or not raw.body or raw.body[0]:
        return raw.body.hex()
    message = method.response.FromString(raw.body[5:])
    return MessageToDict(message, preserving_proto_field_name=True)


def _grpc_content(request: Request, raw: RawAnswer, headers: dict[str, str]) -> Answer:
    packed = headers.pop("grpc-status-details-bin", "")
    status = status_pb2.Status.FromString(base64.b64decode(packed + "=" * (-len(packed) % 4)))
    return {
        "grpc": headers.pop("grpc-status", ""),
        "message": unquote(headers.pop("grpc-message", "")),
        "details": [MessageToDict(detail) for detail in status.details],
        "body": _grpc_message(request, raw),
    }
