"""Random HTTP requests to the five operations that the front answers, from usual to malformed.

The requests have names of `tests/support/twin.py` in place of ids and tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

PATHS: Final = {
    "connected": "/matchmaker/players/connected",
    "disconnected": "/matchmaker/players/disconnected",
    "heartbeat": "/matchmaker/lobbies/heartbeat",
    "join": "/matchmaker/lobbies/join",
    "find": "/matchmaker/lobbies/find",
}
PLACEMENTS: Final = ("join", "find")
UNKNOWN_ID: Final = "0001aaaa-0000-4000-8000-000000000000"
LIVE_LOBBIES: Final = tuple(f"lobby-{number}" for number in range(1, 7))
OTHER_LOBBIES: Final = ("unjoinable", "closed", "ended", "far-lobby")
ID_SPELLINGS: Final = ("upper", "braced", "plain", "urn", "cut", "longer", "escaped")
TOKEN_SPELLINGS: Final = ("cut", "longer", "escaped", "tampered", "ending", "upper")

ODD_VALUES: Final = (
    *("null", "true", "false", "0", "1", "-1", "-0", "1.0", "1e0", "1E2", "0.5", "2.5", "1e400"),
    *("4294967295", "4294967296", "18446744073709551615", "18446744073709551616", "9" * 400),
    *("NaN", "Infinity", "01", "+1", ".5", "1.", "'a'", "undefined"),
    *('""', '" "', '"1"', '"hall"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\x"', '"é"'),
    *('"\x7f"', '"\t"', '"a', "[]", "{}", "[null]", "[[]]", '[""]', "[1]", '{"a": 1}', ""),
    *("[" * 70 + "]" * 70, '{"a":' * 140 + "1" + "}" * 140, '"' + "a" * 5_000 + '"'),
)
SPACES: Final = ("", "", "", " ", "\n", "\t \r\n", "\f", "\u00a0", "/**/", " " * 300)
PARTY_SIZES: Final = ("0", "63", "64", "65", "66", "1.0", "1e0", "-1", '"2"', "4294967296")
HOLDS_MS: Final = ("0", "599999", "600000", "600001", "6e5", "600000.0", "-1", "4294967296")
ADDRESSES: Final = (
    *("192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:DB8::1", "2001:db8:0:0:1::", "::", "::1"),
    *("2001:0db8:0000:0000:0000:0000:0000:0001", "::ffff:192.0.2.1", "::FFFF:c000:201"),
    *("::192.0.2.1", "64:ff9b::192.0.2.1", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1::8", "0.0.0.0"),
    *(
        "fe80::1%eth0",
        "fe80::1%",
        "192.0.2.01",
        "192.0.2",
        "192.0.2.256",
        "192.0.2.1.1",
        "3221225985",
    ),
    *("0xc0.0.2.1", "192.0.2.1:80", "[::1]", " ::1", "::1 ", "::1/64", "1:2:3:4:5:6:7:8:9", ":::"),
    *(
        "12345::",
        "::g",
        "1:2:3:4:5:6:7",
        "1:2:3:4:5:6:7:192.0.2.1",
        "::ffff:192.0.2.01",
        "",
        "localhost",
    ),
    *(
        "1:2:3:4:5:6:192.0.2.1",
        "1::2::3",
        "1:2:3:4:5:6:7:8::",
        "::1:2:3:4:5:6:7:8",
        "０.0.0.0",
        "1.2.3.4\u0000",
    ),
)
GAME_MODES: Final = ("hall", "hall", "hall", "small", "western", "unjoinable", "unfindable")
ODD_GAME_MODES: Final = ("hall", "none", "Hall", "", "h all", "x" * 65, "\u00e9")
REGIONS: Final = ("local", "local", "west", "east")
ODD_REGIONS: Final = ("none", "LOCAL", "", "local-", "x" * 33, "local\n")
BODY_TAILS: Final = (" ", "\n", "x", ",", "{}", "null", "\u0000", "\ufeff", "//")
INVALID_UTF8: Final = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80")
"""Two of them encode a surrogate or are longer than necessary."""

EXTRA_FIELDS: Final = {
    "connected": ('"hold_ms": 1', '"lobby_id": ""'),
    "disconnected": ('"hold": 1', '"reason": null'),
    "heartbeat": ('"players": []', '"tokens": []'),
    "join": (
        '"rejoin_token": "<<player>>"',
        '"rejoin_token": null',
        '"event_channels": []',
        '"event_channels": ["aaaaaaaaaaaaaaaaaaaaaaaa"]',
        '"captcha": {}',
        '"verification_data": {"a": 1}',
        '"tags": {}',
    ),
    "find": (
        '"tags": {}',
        '"tags": {"a": "b"}',
        '"max_players": 3',
        '"max_players": null',
        '"event_channels": []',
        '"verification_data": {}',
        '"prevent_auto_create_lobby": null',
        '"captcha": null',
    ),
}
SHARED_FIELDS: Final = ('"": 1', '"unknown": 1', '"player_token\\u0000": ""', '"a": {"a": [1]}')

USUAL_HEADERS: Final = {
    "user-agent": ("lobby/1.0", "a b (c; d)"),
    "accept": ("*/*", "application/json", "text/html", "a" * 100),
    "accept-encoding": ("gzip, br", "identity;q=0"),
    "accept-language": ("de", "en"),
    "cache-control": ("no-cache",),
    "pragma": ("no-cache",),
    "priority": ("u=1",),
    "connection": ("keep-alive", "Keep-Alive"),
}
TRACE_ID: Final = "0af7651916cd43dd8448eb211c80319c"
FURTHER_HEADERS: Final = (
    "connection: close",
    "upgrade: h2c",
    "idempotency-key: key-1",
    "idempotency-key: key-2",
    "origin: https://<<own.domain>>",
    "origin: https://evil.example",
    f"traceparent: 00-{TRACE_ID}-b7ad6b7169203331-01",
    "x-forwarded-for: 192.0.2.7",
    "forwarded: for=192.0.2.7",
    "x-coords: 10.0,20.0",
    "x-hosting-client: 192.0.2.7",
    "x-hosting-repeat: expired",
    "x-ray-id: 00000000000000000000000000000000",
    "expect: 100-continue",
    "content-encoding: gzip",
    "te: trailers",
    "cookie: a=b",
    "user-agent: " + "u" * 1_100,
)
ODD_HEADERS: Final = (
    "connection: upgrade",
    "connection:",
    "connection: keep-alive, close",
    "idempotency-key:",
    "idempotency-key: a b",
    "idempotency-key: " + "k" * 256,
    "origin: null",
    "traceparent: 00-0",
    "x-forwarded-for: junk",
    "expect: nothing",
    "host: other.example",
    "host:",
    "content-type: application/json",
    "content-type: text/plain",
    "content-length: 3",
    "transfer-encoding: chunked",
    "transfer-encoding: identity",
    "trailer: x",
    "authorization: Bearer <<own.pub>>",
    "user-agent: \u00e9\u00ff",
    "user-agent: a\r\n b",
    "user-agent: a\tb",
    "user-agent: a\x00b",
    "user-agent: a\x7fb",
    "user-agent: a\rb",
    "user-agent: " + "u" * 9_000,
    "user-agent : a",
    "user agent: a",
    ": a",
    "no colon",
    "accept\u00e9: a",
    "\tfolded",
)
CONTENT_TYPES: Final = (
    *("application/json; charset=utf-8", "application/json;", "application/json;charset=latin-1"),
    *("Application/JSON", "application/json ;a=b", "application/json,", "application/jsonp"),
    *("text/plain", "", "application/json; boundary=\u00e9", "application/problem+json"),
    *(" application/json", "application/json \t", "application/json, application/json"),
)
REQUEST_LINES: Final = (
    *("POST {path} HTTP/1.0", "POST {path}? HTTP/1.1", "POST {path}?party_size=2 HTTP/1.1"),
    *("POST {path}?unknown HTTP/1.1", "POST {path}/ HTTP/1.1", "POST /{path} HTTP/1.1"),
    *("POST http://localhost{path} HTTP/1.1", "POST {path}#a HTTP/1.1", "POST {path}%20 HTTP/1.1"),
    *("POST /%6datchmaker{path} HTTP/1.1", "GET {path} HTTP/1.1", "PUT {path} HTTP/1.1"),
    *("OPTIONS {path} HTTP/1.1", "post {path} HTTP/1.1", "POST {path}  HTTP/1.1"),
    *("POST  {path} HTTP/1.1", "\r\nPOST {path} HTTP/1.1", "POST {path} HTTP/1.2"),
    *("POST {path} HTTP/2.0", "POST {path} HTTP/1.1 ", "POST {path}", "POST {path} http/1.1"),
    *("POST {path}\u00e9 HTTP/1.1", "DELETE {path} HTTP/1.1"),
)
AUTHORIZATIONS: Final = (
    *("bearer {token}", "BEARER {token}", "Bearer  {token}", "Bearer {token} ", "Bearer {token}\t"),
    *(
        "Bearer\t{token}",
        "Bearer{token}",
        "Basic {token}",
        "{token}",
        "",
        "Bearer",
        "Bearer ",
        "Token {token}",
    ),
    *(
        "Bearer {token}, Bearer {token}",
        "Bearer {token}\u00e9",
        "Bearer {token}=",
        'Bearer "{token}"',
    ),
    *("Bearer {token} x",),
)
REAL_TOKENS: Final = ("own.expired", "own.revoked", "far.pub", "far.env", "far.revoked")
OTHER_TOKENS: Final = (
    *(
        "cloud_" + "a" * 43,
        "dev_" + "a" * 80,
        "link_abc",
        "env_" + "a" * 43,
        "pub_",
        "lobby_",
        "env_",
    ),
    *("env_" + "a" * 200, "unknown_abc", "a" * 40, "<<player>>", "<<lobby-1.id>>", "pub_\u00e9"),
)

BYTES: Final = (
    *"\0\t\n\v\f\r !\"#$%&'()*+,-./:;<=>?@A[\\]^_`a{|}~\x7f\x80\xe9\xff",
    "\r\n",
    "\r\n\r\n",
)
LENGTH: Final = "<length>"
"""Stands for the length of the body."""
LENGTHS: Final = (
    *(f" 0{LENGTH}", f" +{LENGTH}", f" -{LENGTH}", f" {LENGTH}, {LENGTH}", f" {LENGTH}.0", " 0x5"),
    *(" ", "", f" {LENGTH} x", " 99999999999999999999999", f"\t{LENGTH}", " a"),
)
REQUEST_LINE: Final = "POST {path} HTTP/1.1"
PARTS: Final = (
    ("value", "body", "token", "header", "line", "end", "byte"),
    (36, 24, 14, 30, 6, 6, 10),
)
"""Unusual parts of requests, with weights."""
HEARTBEAT: Final = (
    b"POST /matchmaker/lobbies/heartbeat HTTP/1.1\r\nhost: a\r\n"
    b"authorization: Bearer <<lobby-1.token>>\r\ncontent-length: 2\r\n\r\n{}"
)
REGIONS_REQUEST: Final = (
    b"GET /matchmaker/regions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer <<own.pub>>\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class GeneratedRequest:
    operation: str
    line: str
    headers: tuple[str, ...]
    body: bytes
    length_error: int = 0
    """Difference of the announced length from that of the body."""
    tail: bytes = b""
    """Bytes behind the body."""
    line_end: str = "\r\n"
    response_count: int = 1
    split: float = 1.0
    """Part of the bytes after which the client pauses."""

    def to_bytes(self, fill: Callable[[bytes], bytes], *further_headers: str) -> bytes:
        """Returns the request. `fill` replaces the names."""
        body = fill(self.body)
        lines = (self.line, *further_headers, *self.headers, "", "")
        head = fill(self.line_end.join(lines).encode("latin-1"))
        length = str(max(0, len(body) + self.length_error)).encode()
        return head.replace(LENGTH.encode(), length) + body + fill(self.tail)


class RequestGenerator:
    def __init__(self, seed: int, players: Sequence[tuple[str, str]]) -> None:
        """`players` has the name and the lobby of each player token. It may change between draws."""
        self._random = Random(seed)
        self._players = players

    def draw(self) -> GeneratedRequest:
        """Returns a usual request, or one with some unusual parts."""
        operation = self._random.choice(tuple(PATHS))
        oddities = self._random.choice((0, 0, 1, 1, 1, 1, 1, 2, 3))
        parts = self._random.choices(*PARTS, k=oddities)
        lobby = self._lobby()
        body = self._body(operation, lobby, parts)
        line = self._random.choice(REQUEST_LINES) if "line" in parts else REQUEST_LINE
        request = GeneratedRequest(
            operation,
            line.format(path=PATHS[operation]),
            tuple(self._headers(operation, lobby, parts)),
            body,
            split=self._random.random() if self._is(20) else 1.0,
        )
        if "byte" in parts:
            request = self._with_changed_byte(request)
        return self._with_odd_end(request) if "end" in parts else request

    # Choices

    def _is(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _lobby(self) -> str:
        return self._random.choice(LIVE_LOBBIES if self._is(80) else OTHER_LOBBIES)

    def _player(self, lobby: str) -> str:
        """Returns a player token, most often of the lobby and a new one."""
        names = [name for name, of in self._players if of == lobby]
        if not names or self._is(10):
            names = [name for name, _ in self._players]
        names = names[-6:] if self._is(70) else names
        return self._random.choice(names)

    def _spelled(self, name: str, spellings: Sequence[str], percent: int) -> str:
        return (
            f"<<{name}|{self._random.choice(spellings)}>>" if self._is(percent) else f"<<{name}>>"
        )

    # Bodies

    def _body(self, operation: str, lobby: str, parts: Sequence[str]) -> bytes:
        members = self._members(operation, lobby, "value" in parts)
        if "body" not in parts:
            return self._object(members, ("", " ")).encode()
        return self._odd_body(operation, lobby, members)

    def _members(self, operation: str, lobby: str, has_odd_value: bool) -> list[tuple[str, str]]:
        """Returns names and JSON values of the fields."""
        odd = 50 if has_odd_value else 0
        match operation:
            case "connected":
                members = {"player_token": self._player_value(lobby, odd)}
            case "disconnected":
                members = {"player_token": self._player_value(lobby, odd)}
                if self._is(50):
                    members["hold_ms"] = self._random.choice(HOLDS_MS[: 8 if odd else 3])
            case "heartbeat":
                members = {}
                if self._is(70):
                    members["player_tokens"] = self._player_list(lobby, odd)
            case "join":
                members = {"lobby_id": f'"{self._spelled(f"{lobby}.id", ID_SPELLINGS, odd // 2)}"'}
                if odd and self._is(10):
                    members["lobby_id"] = f'"{UNKNOWN_ID}"'
                members |= self._party(odd)
            case _:
                members = {"game_modes": self._names(GAME_MODES, ODD_GAME_MODES, odd)}
                if self._is(50):
                    members["regions"] = self._names(REGIONS, ODD_REGIONS, odd)
                if self._is(20):
                    members["prevent_auto_create_lobby"] = self._random.choice(("true", "false"))
                members |= self._party(odd)
        if has_odd_value and members and self._is(50):
            members[self._random.choice(tuple(members))] = self._random.choice(ODD_VALUES)
        return list(members.items())

    def _player_value(self, lobby: str, odd: int) -> str:
        return f'"{self._spelled(self._player(lobby), TOKEN_SPELLINGS, odd)}"'

    def _player_list(self, lobby: str, odd: int) -> str:
        if self._is(40):
            names = [name for name, of in self._players if of == lobby]
            values = [f'"<<{name}>>"' for name in names[-120:]]
        else:
            values = [self._player_value(lobby, odd) for _ in range(self._random.randrange(6))]
        if odd and self._is(30):
            values.append(self._random.choice(ODD_VALUES))
        return f"[{', '.join(values)}]"

    def _party(self, odd: int) -> dict[str, str]:
        members = {}
        if self._is(50):
            small = str(self._random.choice((1, 1, 2, 2, 3, 4, 8, 20)))
            members["party_size"] = (
                self._random.choice((*PARTY_SIZES, str(self._random.randrange(66))))
                if odd and self._is(odd)
                else small
            )
        if self._is(30):
            members["client_address"] = json.dumps(
                self._random.choice(ADDRESSES if self._is(30 + odd) else ADDRESSES[:4])
            )
        return members

    def _names(self, usual: Sequence[str], odd_names: Sequence[str], odd: int) -> str:
        names = self._random.choices(usual, k=self._random.choice((1, 1, 1, 2, 3)))
        names = names if odd else list(dict.fromkeys(names))
        if self._is(odd):
            names[self._random.randrange(len(names)) :] = [self._random.choice(odd_names)]
        if odd and self._is(5):
            names += [f"name-{number}" for number in range(self._random.choice((31, 32, 64, 65)))]
        return json.dumps(names, ensure_ascii=self._is(50))

    def _object(self, members: Sequence[tuple[str, str]], spaces: Sequence[str]) -> str:
        pick = self._random.choice
        texts = [f'{pick(spaces)}"{name}"{pick(spaces)}:{pick(spaces)}{v}' for name, v in members]
        return f"{pick(spaces)}{{{f'{pick(spaces)},'.join(texts)}{pick(spaces)}}}{pick(spaces)}"

    def _odd_body(self, operation: str, lobby: str, members: list[tuple[str, str]]) -> bytes:
        text = self._object(members, ("", " "))
        extra = self._random.choice((*EXTRA_FIELDS[operation], *SHARED_FIELDS)).replace(
            "<<player>>", f"<<{self._player(lobby)}>>"
        )
        match self._random.randrange(12):
            case 0:
                return b""
            case 1:
                return (text + self._random.choice(BODY_TAILS)).encode()
            case 2:
                return (self._random.choice(BODY_TAILS) + text).encode()
            case 3:
                pieces = _pieces(text)
                return "".join(pieces[: self._random.randrange(len(pieces))]).encode()
            case 4:
                # The values without their names.
                return f"[{', '.join(value for _, value in members)}]".encode()
            case 5:
                return f"[{text}]".encode()
            case 6:
                return self._random.choice(ODD_VALUES).encode()
            case 7:
                text = text.replace("}", f"{', ' if members else ''}{extra}}}", 1)
                return text.encode()
            case 8:
                # A repeated field, with the same or another value.
                again = self._members(operation, lobby, self._is(50))
                return self._object([*members, *again], ("", " ")).encode()
            case 9:
                return self._object(members, SPACES).encode()
            case 10:
                return self._with_invalid_utf8(text)
            case _:
                members = [(self._odd_name(name), value) for name, value in members]
                return self._object(members, ("", " ")).encode()

    def _odd_name(self, name: str) -> str:
        at = self._random.randrange(len(name))
        return self._random.choice(
            (
                f"{name[:at]}\\u{ord(name[at]):04x}{name[at + 1 :]}",
                f"{name[:at]}\\u{ord(name[at]):04X}{name[at + 1 :]}",
                name.title().replace("_", ""),
                name[0] + name.title().replace("_", "")[1:],
                name.upper(),
                f"{name} ",
                f"{name}\\u0000",
            )
        )

    def _with_invalid_utf8(self, text: str) -> bytes:
        pieces = [piece.encode() for piece in _pieces(text)]
        # Every second piece is a name.
        number = self._random.randrange(0, len(pieces), 2)
        piece = pieces[number]
        at = self._random.randrange(len(piece) + 1)
        pieces[number] = piece[:at] + self._random.choice(INVALID_UTF8) + piece[at:]
        return b"".join(pieces)

    # Heads and ends

    def _headers(self, operation: str, lobby: str, parts: Sequence[str]) -> list[str]:
        headers = [
            "host: localhost",
            self._authorization(operation, lobby, "token" in parts),
            f"content-length: {LENGTH}",
        ]
        if self._is(80):
            headers.append("content-type: application/json")
        names = self._random.sample(tuple(USUAL_HEADERS), k=self._random.randrange(4))
        headers += [f"{name}: {self._random.choice(USUAL_HEADERS[name])}" for name in names]
        if "header" in parts:
            headers = self._with_odd_header(headers)
        if self._is(30):
            self._random.shuffle(headers)
        if self._is(10):
            headers = [_with_title(header) for header in headers]
        return headers

    def _with_odd_header(self, headers: list[str]) -> list[str]:
        number = self._random.randrange(len(headers))
        match self._random.randrange(11):
            case 0:
                return headers[:number] + headers[number + 1 :]
            case 1:
                return [*headers, headers[number]]
            case 2:
                others = [one for one in headers if not one.startswith("content-type")]
                return [*others, f"content-type: {self._random.choice(CONTENT_TYPES)}"]
            case 3:
                others = [one for one in headers if not one.startswith("content-length")]
                return [*others, f"content-length:{self._random.choice(LENGTHS)}"]
            case 4:
                name, _, value = headers[number].partition(":")
                space = self._random.choice(("", "  ", "\t", " \t "))
                spaced = f"{name}:{space}{value.strip()}{space}"
                return [*headers[:number], spaced, *headers[number + 1 :]]
            case 5:
                return headers + ["accept: a"] * self._random.choice((10, 20, 140))
            case 6:
                return [*headers, self._random.choice(ODD_HEADERS)]
            case _:
                return [*headers, self._random.choice(FURTHER_HEADERS)]

    def _authorization(self, operation: str, lobby: str, is_odd: bool) -> str:
        if operation in PLACEMENTS:
            role = "far" if lobby == "far-lobby" else "own"
            name = f"{role}.{self._random.choice(('pub', 'env'))}"
        else:
            name = f"{lobby}.token"
        if not is_odd:
            return f"authorization: Bearer <<{name}>>"
        token = f"<<{name}>>"
        match self._random.randrange(6):
            case 4 | 5 if operation in PLACEMENTS:
                token = f"<<{self._random.choice(REAL_TOKENS)}>>"
            case 0:
                # A token of another lobby, or of the other kind.
                kinds = ("own.pub", "own.env", f"{self._lobby()}.token")
                token = f"<<{self._random.choice(kinds)}>>"
            case 1:
                token = self._spelled(name, TOKEN_SPELLINGS, 100)
            case 2:
                token = self._random.choice(OTHER_TOKENS)
                token = token.replace("<<player>>", f"<<{self._player(lobby)}>>")
            case _:
                form = self._random.choice(AUTHORIZATIONS)
                return f"authorization: {form.format(token=token)}"
        return f"authorization: Bearer {token}"

    def _with_changed_byte(self, request: GeneratedRequest) -> GeneratedRequest:
        number = self._random.randrange(-2, len(request.headers))
        if number == -2:
            return replace(request, line=self._changed(request.line))
        if number == -1:
            body = self._changed(request.body.decode("latin-1"))
            return replace(request, body=body.encode("latin-1"))
        headers = list(request.headers)
        headers[number] = self._changed(headers[number])
        return replace(request, headers=tuple(headers))

    def _changed(self, text: str) -> str:
        """Inserts, replaces or removes a byte outside of names."""
        pieces = _pieces(text)
        number = self._random.randrange(0, len(pieces), 2)
        piece = pieces[number]
        at = self._random.randrange(len(piece) + 1)
        byte = self._random.choice(BYTES) if self._is(80) else ""
        pieces[number] = piece[:at] + byte + piece[at + self._random.randrange(2) :]
        return "".join(pieces)

    def _with_odd_end(self, request: GeneratedRequest) -> GeneratedRequest:
        match self._random.randrange(6):
            case 5:
                return replace(request, tail=HEARTBEAT, response_count=2)
            case 0:
                return replace(request, tail=b"\0junk\r\n\r\n", response_count=2)
            case 1:
                return replace(request, tail=REGIONS_REQUEST, response_count=2)
            case 2:
                return replace(request, length_error=-1)
            case 3:
                return replace(request, line_end="\n")
            case _:
                headers = tuple(
                    "transfer-encoding: chunked" if one.startswith("content-length") else one
                    for one in request.headers
                )
                # The body has one chunk, if the value of its only name is replaced before.
                return replace(request, headers=headers, body=b"2\r\n{}\r\n0\r\n\r\n")


def _pieces(text: str) -> list[str]:
    """Splits a text. Every second piece is a name."""
    return re.split(rf"(<<.*?>>|{LENGTH})", text)


def _with_title(header: str) -> str:
    name, colon, value = header.partition(":")
    return f"{name.title()}{colon}{value}"
