"""Client connections of HTTP/1.1 and HTTP/2 that send requests as they are, also malformed ones."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import BinaryIO, Final

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.support.waiting import PATIENCE_S

Headers = list[tuple[str, str]]
_WITHOUT_BODY: Final = (100, 204, 304)


@dataclass(slots=True)
class RawAnswer:
    status: int
    headers: Headers
    body: bytes


class Http1Connection:
    def __init__(self, address: tuple[str, int], peer: str) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S, (peer, 0))
        self._stream: BinaryIO = self._socket.makefile("rb")
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._stream.close()
        self._socket.close()

    def ask(self, head: bytes, body: bytes, response_count: int) -> list[RawAnswer]:
        """Returns the answers until the service closes the connection.

        Sends the body after 100 if the head expects it.
        """
        answers: list[RawAnswer] = []
        is_waiting = bool(body) and b"\r\nexpect: 100-continue\r\n" in head.lower()
        try:
            self._socket.sendall(head if is_waiting else head + body)
            while response_count:
                answers.append(self._read(has_body=not head.startswith(b"HEAD ")))
                if answers[-1].status != 100:
                    response_count -= 1
                elif is_waiting:
                    self._socket.sendall(body)
                    is_waiting = False
        except (EOFError, OSError):
            self.close()
        if not answers or is_waiting or ("connection", "close") in answers[-1].headers:
            self.close()
        return answers

    def _read(self, *, has_body: bool) -> RawAnswer:
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        headers: Headers = []
        while (entry := self._stream.readline()) != b"\r\n":
            if not entry:
                raise EOFError
            name, _, value = entry.decode("latin-1").strip().partition(":")
            headers.append((name.lower(), value.strip()))
        status, values = int(line.split()[1]), dict(headers)
        if status in _WITHOUT_BODY or not has_body:
            return RawAnswer(status, headers, b"")
        if "transfer-encoding" in values:
            return RawAnswer(status, headers, self._read_chunks())
        size = int(values.get("content-length", -1))
        return RawAnswer(status, headers, self._stream.read(size))

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self._stream.readline(), 16):
            body += self._stream.read(size)
            self._stream.readline()
        self._stream.readline()
        return body


class Http2Connection:
    def __init__(self, address: tuple[str, int], peer: str) -> None:
        self._socket = socket.create_connection(address, PATIENCE_S, (peer, 0))
        self._state = h2.connection.H2Connection(
            h2.config.H2Configuration(
                validate_outbound_headers=False, normalize_outbound_headers=False
            )
        )
        self._state.initiate_connection()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._socket.close()

    def ask(self, head: bytes, body: bytes) -> RawAnswer:
        """Returns the answer with its trailers among the headers. A reset stream has the header `:reset`."""
        stream = self._state.get_next_available_stream_id()
        self._state.send_headers(stream, _http2_headers(head))
        answer = RawAnswer(0, [], b"")
        is_sent = is_ended = False
        try:
            while not is_ended:
                while not is_sent and (size := self._sendable(stream, body)) >= 0:
                    is_sent = size == len(body)
                    self._state.send_data(stream, body[:size], end_stream=is_sent)
                    body = body[size:]
                self._socket.sendall(self._state.data_to_send())
                data = self._socket.recv(65_536)
                if not data:
                    raise EOFError
                for event in self._state.receive_data(data):
                    is_ended |= self._take(event, stream, answer)
                is_sent |= is_ended
            self._socket.sendall(self._state.data_to_send())
        except (EOFError, OSError, h2.exceptions.ProtocolError):
            self.close()
        return answer

    def _sendable(self, stream: int, body: bytes) -> int:
        """Returns the size of the next frame, or -1 if the windows are full."""
        window = self._state.local_flow_control_window(stream)
        size = min(window, self._state.max_outbound_frame_size, len(body))
        return size if size or not body else -1

    def _take(self, event: h2.events.Event, stream: int, answer: RawAnswer) -> bool:
        """Returns whether the stream has ended."""
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                fields = [(name.decode(), value.decode("latin-1")) for name, value in event.headers]
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


def _http2_headers(head: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a request head of HTTP/1.1."""
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    method, target, _ = line.split(b" ", 2)
    headers = [(b":method", method), (b":scheme", b"http"), (b":path", target)]
    for entry in lines:
        name, _, value = entry.partition(b": ")
        headers.append((b":authority" if name == b"host" else name, value))
    return headers
