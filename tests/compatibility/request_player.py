"""Player of recorded requests over HTTP/1.1, HTTP/2 and gRPC. Returns normalized answers.

A request has names such as `<<lobby-1.token>>` in place of the ids and tokens of one run.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import status_pb2

from pyservice.schema.methods import METHODS
from tests.support.twin import SPELLINGS
from tests.support.waiting import PATIENCE_S

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
Headers = list[tuple[str, str]]


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


@dataclass(slots=True)
class RawAnswer:
    status: int
    headers: Headers
    body: bytes


class _Http1:
    def __init__(self, address: tuple[str, int], peer: str) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S, (peer, 0))
        self._stream: BinaryIO = self._socket.makefile("rb")
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._stream.close()
        self._socket.close()

    def ask(self, head: bytes, body: bytes, response_count: int) -> list[RawAnswer]:
        """Sends the body after 100 if the head expects it."""
        answers: list[RawAnswer] = []
        expects = b"\r\nexpect: 100-continue\r\n" in head.lower() and body
        try:
            self._socket.sendall(head if expects else head + body)
            while response_count:
                answers.append(self._read(head))
                if answers[-1].status != 100:
                    response_count -= 1
                elif expects:
                    self._socket.sendall(body)
        except (EOFError, ConnectionError):
            self.is_open = False
        is_closing = (
            any(value == "close" for name, value in answers[-1].headers if name == "connection")
            if answers
            else True
        )
        if is_closing or (expects and answers[0].status != 100):
            self.close()
        return answers

    def _read(self, head: bytes) -> RawAnswer:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        headers: Headers = []
        while (entry := self._stream.readline()) != b"\r\n":
            if not entry:
                raise EOFError
            name, _, value = entry.decode("latin-1").strip().partition(":")
            headers.append((name.lower(), value.strip()))
        status, fields = int(line.split()[1]), dict(headers)
        if status == 100 or head.startswith(b"HEAD "):
            return RawAnswer(status, headers, b"")
        if "content-length" in fields:
            return RawAnswer(status, headers, self._stream.read(int(fields["content-length"])))
        assert "transfer-encoding" not in fields, fields
        return RawAnswer(status, headers, b"" if status in (204, 304) else self._stream.read())


class _Http2:
    def __init__(self, address: tuple[str, int], peer: str) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S, (peer, 0))
        configuration = h2.config.H2Configuration(
            validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._state = h2.connection.H2Connection(configuration)
        self._state.initiate_connection()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def ask(self, headers: Headers, body: bytes) -> RawAnswer:
        """Returns the answer with its trailers among the headers."""
        stream = self._state.get_next_available_stream_id()
        self._state.send_headers(
            stream, [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers]
        )
        answer = RawAnswer(0, [], b"")
        is_sent = is_ended = False
        try:
            while not is_ended:
                while not is_sent:
                    size = min(
                        self._state.local_flow_control_window(stream),
                        self._state.max_outbound_frame_size,
                        len(body),
                    )
                    is_sent = size == len(body)
                    if size or is_sent:
                        self._state.send_data(stream, body[:size], end_stream=is_sent)
                        body = body[size:]
                    else:
                        break
                self._socket.sendall(self._state.data_to_send())
                data = self._socket.recv(65_536)
                if not data:
                    raise ConnectionError
                for event in self._state.receive_data(data):
                    is_ended |= self._take(event, stream, answer)
                    is_sent |= is_ended
            self._socket.sendall(self._state.data_to_send())
        except (ConnectionError, h2.exceptions.ProtocolError):
            self.close()
        return answer

    def _take(self, event: h2.events.Event, stream: int, answer: RawAnswer) -> bool:
        """Returns whether the stream has ended."""
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                fields = [(n.decode(), v.decode("latin-1")) for n, v in event.headers]
                answer.headers += [one for one in fields if one[0] != ":status"]
                answer.status = int(dict(fields).get(":status", answer.status))
            case h2.events.DataReceived():
                answer.body += event.data
                self._state.acknowledge_received_data(event.flow_controlled_length, stream)
            case h2.events.StreamReset():
                answer.headers.append((":reset", str(event.error_code)))
                return True
            case h2.events.ConnectionTerminated():
                self.is_open = False
        return isinstance(event, h2.events.StreamEnded)


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
            headers = [*_headers2(head), ("te", "trailers"), ("content-type", "application/grpc")]
            data = _grpc_frame(path, fields, request.change)
            return [self._connection(_Http2, "grpc", request).ask(headers, data)]
        body = self.names.fill(request.body.encode("latin-1"))
        head = _LENGTH.sub(lambda match: b"%d" % max(0, len(body) + int(match[1] or 0)), head)
        if request.over == HTTP2:
            return [self._connection(_Http2, "http", request).ask(_headers2(head), body)]
        if request.change == "chunked":
            half = len(body) // 2
            chunks = [one for one in (body[:half], body[half:]) if one]
            body = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"
        connection = self._connection(_Http1, "http", request)
        tail = self.names.fill(request.tail.encode("latin-1"))
        answers: list[RawAnswer] = connection.ask(head, body + tail, 2 if tail else 1)
        if request.is_alone:
            connection.close()
        return answers

    def _save(self, number: int, request: Request, raw: RawAnswer) -> None:
        """Names the ids and tokens of a successful answer."""
        if request.over == GRPC:
            method = BY_PATH.get(request.head.split(" ", 2)[1])
            content = _message(method, raw.body) if method and len(raw.body) > 5 else {}
        elif raw.status == 200 and raw.body.startswith(b"{"):
            content = json.loads(raw.body)
        else:
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
            text = raw.body.decode("utf-8", "backslashreplace")
            is_json = "json" in headers.get("content-type", "") and request.operation != "get_state"
            answer["body"] = json.loads(text) if is_json and text else text
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
    return (
        "OK"
        if answer.get("grpc") == "0" or (answer.get("status") == 200 and "grpc" not in answer)
        else f"{answer.get('status', 'none')} {answer.get('grpc', '')}".strip()
    )


def _headers2(head: bytes) -> Headers:
    line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = line.split(" ", 2)
    headers = [tuple(one.split(": ", 1)) for one in lines]
    authority = next((one[1] for one in headers if one[0] == "host"), "")
    rest = [(name, value) for name, value in headers if name != "host"]
    return [
        (":method", method),
        (":scheme", "http"),
        (":path", target),
        *([(":authority", authority)] if authority else []),
        *rest,
    ]


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


def _message(method: Any, body: bytes) -> Any:
    message = method.response.FromString(body[5:])
    return MessageToDict(message, preserving_proto_field_name=True)


def _grpc_content(request: Request, raw: RawAnswer, headers: dict[str, str]) -> Answer:
    method = BY_PATH.get(request.head.split(" ", 2)[1])
    packed = headers.pop("grpc-status-details-bin", "")
    status = status_pb2.Status.FromString(base64.b64decode(packed + "=" * (-len(packed) % 4)))
    details = [MessageToDict(detail) for detail in status.details]
    return {
        "grpc": headers.pop("grpc-status", ""),
        "message": unquote(headers.pop("grpc-message", "")),
        "details": details,
        "body": _message(method, raw.body) if method and raw.body else raw.body.hex(),
    }
