"""Generated requests of all matchmaker operations, from usual to malformed, in rounds with new lobbies."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.compatibility.recorded_service import GAME, LIMITED_PEER, PORTS, TRUSTED_PEER
from tests.compatibility.request_player import GRPC, HTTP1, HTTP2, Request
from tests.support.full_service import BY_SLUG
from tests.support.generated_messages import CHANGES, CallGenerator, GeneratedCall
from tests.support.generated_requests import (
    AUTHORIZATIONS,
    CONTENT_TYPES,
    ODD_VALUES,
    OTHER_TOKENS,
    GeneratedRequest,
    RequestGenerator,
)

LOBBIES: Final = {
    "lobby-1": ("own", "hall", "local", 12),
    "lobby-2": ("own", "hall", "west", 6),
    "lobby-3": ("own", "western", "west", 4),
    "lobby-4": ("own", "small", "local", 1),
    "lobby-5": ("own", "small", "west", 2),
    "lobby-6": ("own", "unfindable", "local", 4),
    "unjoinable": ("own", "unjoinable", "local", 0),
    "closed": ("own", "hall", "local", 0),
    "ended": ("own", "hall", "local", 2),
    "far-lobby": ("far", "hall", "local", 2),
    "tagged": ("own", "tagged", "local", 3),
    "sized": ("own", "sized", "west", 0),
    "made": ("own", "made", "local", 0),
    "hidden": ("own", "hidden", "east", 0),
    "swept": ("own", "swept", "local", 6),
    "brief": ("own", "brief", "west", 4),
    "verified": ("own", "verified", "local", 0),
    "starting": ("own", "hidden", "local", 0),
    "guarded": ("guarded", "hall", "local", 0),
}
"""Namespace, game mode, region and first players of each lobby."""
OPERATIONS: Final = {
    **dict.fromkeys(("find", "join", "connected"), 5),
    **dict.fromkeys(("disconnected", "heartbeat", "create", "list"), 3),
    **dict.fromkeys(("ready", "closed", "set_state", "get_state", "attach", "detach"), 2),
    **dict.fromkeys(("regions", "statistics"), 2),
}
"""Operations with weights."""
OF_SERVERS: Final = ("connected", "disconnected", "heartbeat", "ready", "closed", "set_state")
DOORS: Final = (HTTP1, HTTP2, GRPC, HTTP1)
ODD_FIELDS: Final[tuple[Any, ...]] = (None, 1, "1", True, [], {}, [None], 1.5, "\ud83d", 2**64)
_BODIES_OF_JSON: Final = ("state", "verification_data", "lobby_config")


def _repeated(value: Any) -> Any:
    """Replaces `{a*3}` by `aaa` in all texts."""
    match value:
        case str():
            return re.sub(r"\{(.)\*(\d+)\}", lambda match: match[1] * int(match[2]), value)
        case list():
            return [_repeated(one) for one in value]
    return {name: _repeated(one) for name, one in value.items()}


VALUES: Final = _repeated(
    tomllib.loads(Path(__file__).with_name("request_values.toml").read_text())
)


@dataclass(kw_only=True)
class Draft:
    """A request of an operation before it is encoded for a transport."""

    over: str
    operation: str
    token: str
    fields: dict[str, Any] = field(default_factory=dict)
    authorizations: list[str] | None = None
    """Headers in place of the one with the token."""
    headers: list[str] = field(default_factory=list)
    body: str | None = None
    method: str | None = None
    path_change: tuple[str, str] = ("", "")
    query: str = ""
    change: str = ""
    peer: str = "127.0.0.1"
    is_alone: bool = False
    is_json: bool = False
    """Whether the fields fit no message."""

    def request(self, **more: Any) -> Request:
        method, fields = BY_SLUG[self.operation], dict(self.fields)
        authorizations = (
            [f"Bearer <<{self.token}>>"] if self.authorizations is None else self.authorizations
        )
        headers = [f"authorization: {one}" for one in authorizations] + self.headers
        type_ = f"content-type: application/{'grpc' if self.over == GRPC else 'json'}"
        has_type = any(one.startswith("content-type") for one in headers)
        more |= {"over": self.over, "operation": self.operation, "peer": self.peer}
        if self.over == GRPC:
            head = _head(
                f"POST {method.grpc_path}", ["host: test", *headers, *([] if has_type else [type_])]
            )
            return Request(
                head=head, body=json.dumps(_message_fields(fields)), change=self.change, **more
            )
        path = method.template.format(**{name: fields.pop(name, "") for name in method.path_fields})
        path = path.replace(*self.path_change, 1)
        query, body = self.query, self.body
        if not method.body_field:
            texts = [f"{n}={v if isinstance(v, str) else json.dumps(v)}" for n, v in fields.items()]
            query = query or ("?" + "&".join(texts) if texts else "")
        elif body is None:
            content = fields.get("state", "") if method.body_field == "state" else fields
            body = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        if method.body_field and not has_type:
            headers.append(type_)
        if self.over == HTTP1 and body is not None:
            headers.append(
                "transfer-encoding: chunked" if self.change else "content-length: <length>"
            )
        if not any(one.startswith("host:") for one in headers):
            headers.insert(0, "host: localhost")
        head = _head(_latin(f"{self.method or method.http_method} {path}{query}"), headers)
        change = self.change if self.over == HTTP1 else ""
        return Request(
            head=head, body=_latin(body or ""), change=change, is_alone=self.is_alone, **more
        )


def _latin(text: str) -> str:
    """Returns the bytes of a text as characters."""
    return text.encode(errors="surrogatepass").decode("latin-1")


def _head(line: str, headers: Sequence[str]) -> str:
    return "\r\n".join((f"{line} HTTP/1.1", *headers, "", ""))


def _message_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields in the JSON of protobuf."""
    result = dict(fields)
    for name in result.keys() & set(_BODIES_OF_JSON):
        value = result[name]
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        result[name] = base64.b64encode(text.encode() if isinstance(text, str) else text).decode()
    if isinstance(result.get("player_tokens"), list):
        result["player_tokens"] = {"tokens": result["player_tokens"]}
    return result


class CorpusGenerator:
    def __init__(self, seed: int, players: list[tuple[str, str]]) -> None:
        """`players` has the name and the lobby of each player token. The caller adds those of the answers."""
        self._random = Random(seed)
        self._players = players
        self._raw = RequestGenerator(seed, players)
        self._calls = CallGenerator(seed, players, changes_percent=10)
        self._keyed: list[Draft] = []
        """Requests of this round with a key."""

    def requests(self, rounds: int, draws: int) -> Iterator[Request]:
        """Yields the requests. The caller sends each of them before it takes the next one."""
        brief: list[str] = []
        for number in range(rounds):
            self._players.clear()
            self._keyed.clear()
            yield from self._begin_round()
            if number == 0:
                brief = [name for name, lobby in self._players if lobby == "brief"]
                yield from self._sweep()
            for _ in range(draws):
                yield from self._draw()
            if number == rounds - 1:
                for name in brief:
                    # Their time has passed since the first round.
                    yield self._usual("connected", "brief.token", player_token=f"<<{name}>>")
                yield from self._administer()
            yield from self._end_round()
        yield from self._exceed_limits()

    def _is(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)

    # Parts of the sequence

    def _usual(self, operation: str, token: str, **fields: Any) -> Request:
        return Draft(
            over=self._pick(DOORS), operation=operation, token=token, fields=fields
        ).request()

    def _begin_round(self) -> Iterator[Request]:
        for lobby, (namespace, mode, region, players) in LOBBIES.items():
            tags = {"tags": {"map": "hill", "level": "3"}} if mode == "tagged" else {}
            where = _in_namespace({"own": "prod"}.get(namespace, namespace))
            attach = where | {"game_mode": mode, "region": region, "ports": PORTS} | tags
            yield replace(self._usual("attach", f"{namespace}.env", **attach), lobby=lobby)
            if lobby != "starting":
                yield self._usual("ready", f"{lobby}.token")
            if players:
                join = {"lobby_id": f"<<{lobby}.id>>", "party_size": players}
                yield self._usual("join", f"{namespace}.env", **join)
        yield self._usual("closed", "closed.token", is_closed=True)
        yield self._usual("set_state", "lobby-1.token", state=' {"map": "hill"}')
        yield self._usual("detach", "own.env", game_id=GAME, lobby_id="<<ended.id>>")
        yield self._usual("list", "own.pub", include_state=True)

    def _end_round(self) -> Iterator[Request]:
        yield self._usual("statistics", "own.pub")
        yield self._usual("list", "far.pub")
        for lobby, (namespace, *_) in LOBBIES.items():
            where = {"game_id": GAME, "lobby_id": f"<<{lobby}.id>>"}
            yield self._usual("detach", f"{namespace}.env", **where)

    def _sweep(self) -> Iterator[Request]:
        """Sends each key and origin over each transport, and lists of the largest size."""
        for over in DOORS[:3]:
            for operation in ("connected", "find", "join", "list", "heartbeat", "attach"):
                usual = self._draft(operation, "lobby-1", over)
                for key in VALUES["keys"]:
                    yield replace(usual, headers=[f"idempotency-key: {key}"]).request()
                keys = [f"idempotency-key: {key}" for key in VALUES["keys"][:2]]
                yield replace(usual, headers=keys).request()
                for origin in VALUES["origins"]:
                    headers = [f"origin: {origin}"]
                    yield replace(usual, headers=headers, authorizations=[]).request()
                    if over != GRPC:
                        headers += [
                            f"access-control-request-method: {BY_SLUG[operation].http_method}"
                        ]
                        yield replace(
                            usual, method="OPTIONS", headers=headers, authorizations=[]
                        ).request()
            for count in (65_535, 65_536):
                fields = {"player_tokens": ["x"] * count}
                yield replace(self._draft("heartbeat", "lobby-1", over), fields=fields).request()

    def _administer(self) -> Iterator[Request]:
        """Refuses clients without a token for a time. Then the lobbies drain for a time."""
        fields: dict[str, dict[str, Any]] = {
            "find": {"game_modes": ["hall"]},
            "join": {"lobby_id": "<<lobby-1.id>>"},
        }
        where = _in_namespace("prod")
        origin = [f"origin: {VALUES['origins'][0]}"]
        for step in (
            {"enabled": False},
            {"enabled": True},
            {"version_id": "<<next-version>>"},
            {"version_id": "<<version>>"},
        ):
            operation = "set_domain_public_auth" if "enabled" in step else "set_version"
            yield self._usual(operation, "cloud", **where, **step)
            for over in DOORS[:3]:
                for name in ("find", "join", "list", "statistics"):
                    draft = Draft(
                        over=over, operation=name, token="own.pub", fields=fields.get(name, {})
                    )
                    if "enabled" in step:
                        draft = replace(draft, authorizations=[], headers=origin)
                    yield draft.request()

    def _exceed_limits(self) -> Iterator[Request]:
        """Exceeds each limit of the limited service."""
        tokens = [*["own.pub"] * 6, *["own.env"] * 6, *["far.env"] * 6, "own.pub"]
        tokens += [
            "own.env|tampered",
            "own.revoked",
            "own.pub|ending",
            "own.env|cut",
            "own.revoked",
            "own.env",
        ]
        for position, token in enumerate(tokens):
            operation = ("find", "regions", "list", "statistics")[position % 4]
            draft = Draft(
                over=DOORS[position % 3],
                operation=operation,
                token=f"limited-{token}",
                peer=LIMITED_PEER,
            )
            if operation == "find":
                draft.fields = {"game_modes": ["hall"], "prevent_auto_create_lobby": True}
            yield draft.request(service="limited")

    # Draws

    def _draw(self) -> Iterator[Request]:
        match self._random.choices(("raw", "call", "draft"), (20, 20, 60))[0]:
            case "raw":
                yield _from_raw(self._raw.draw())
            case "call":
                yield _from_call(self._calls.draw(), self._pick((GRPC, GRPC, HTTP2)))
            case _ if self._keyed and self._is(15):
                yield self._again().request()
            case _:
                operation = self._random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
                draft = self._draft(operation, self._pick(list(LOBBIES)), self._pick(DOORS))
                changes = [
                    self._change_token,
                    self._change_origin,
                    self._add_key,
                    self._change_fields,
                    self._change_fields,
                ]
                changes += [
                    self._change_body,
                    self._add_headers,
                    self._add_headers,
                    self._change_target,
                    self._change_peer,
                ]
                for change in self._random.sample(changes, k=self._pick((0, 1, 1, 1, 2, 3))):
                    change(draft)
                yield draft.request()

    def _draft(self, operation: str, lobby: str, over: str) -> Draft:
        """Returns a usual request."""
        token = (
            f"{lobby}.token"
            if operation in OF_SERVERS
            else self._pick(("own.pub", "own.pub", "own.env"))
        )
        if operation in ("attach", "detach", "get_state"):
            token = self._pick(("own.env", "own.env", "own.env", "cloud"))
        fields = self._fields("usual", operation, lobby)
        if operation == "attach":
            fields = {**_in_namespace("prod"), "ports": PORTS, **fields}
        if operation == "detach":
            fields = {"game_id": GAME, **fields}
        return Draft(over=over, operation=operation, token=token, fields=fields)

    def _fields(self, kind: str, operation: str, lobby: str) -> dict[str, Any]:
        text = self._pick(VALUES[kind].get(operation, ("{}",))).replace("<<lobby.", f"<<{lobby}.")
        fields: dict[str, Any] = json.loads(self._with_players(text, lobby))
        return fields

    def _with_players(self, text: str, lobby: str) -> str:
        """Fills in player tokens, most often of the lobby."""

        def player(match: re.Match[str]) -> str:
            names = [name for name, of in self._players if of == lobby]
            if not names or self._is(10):
                names = [name for name, _ in self._players]
            return f"<<{self._pick(names)}{match[1] or ''}>>"

        return re.sub(r"<<player(\|\w+)?>>", player, text)

    def _again(self) -> Draft:
        """Returns an earlier request with a key, most often with one difference."""
        draft: Draft = self._pick(self._keyed)
        over = self._pick(DOORS[:2] if draft.is_json else DOORS)
        draft = replace(draft, over=over, fields=dict(draft.fields), change="", body=None)
        match self._random.randrange(5):
            case 0:
                draft.fields |= self._fields("usual", draft.operation, self._pick(list(LOBBIES)))
            case 1:
                draft.authorizations = [f"Bearer <<{self._pick(VALUES['tokens'])}>>"]
            case 2:
                draft.operation = "join" if draft.operation == "find" else "disconnected"
                draft.fields = self._fields("usual", draft.operation, "lobby-1")
        return draft

    # Changes of a draft

    def _change_token(self, draft: Draft) -> None:
        token = f"<<{draft.token}>>"
        forms: list[list[str]] = [
            [],
            [self._pick(AUTHORIZATIONS).format(token=token)],
            [f"Bearer {self._with_players(self._pick(OTHER_TOKENS), 'lobby-1')}"],
            [f"Bearer {token}"] * 2,
            ["Bearer <<own.pub>>", "Bearer <<own.env>>"],
            [f"Bearer <<{draft.token}|{self._pick(VALUES['spellings'])}>>"],
            [f"Bearer <<{self._pick(VALUES['tokens'])}>>"],
            [f"Bearer <<{self._pick(VALUES['tokens'])}>>"],
        ]
        draft.authorizations = self._pick(forms)

    def _change_origin(self, draft: Draft) -> None:
        draft.headers.append(
            f"origin: {self._pick(VALUES['origins'] if self._is(60) else VALUES['origins'][:1])}"
        )
        if self._is(50):
            draft.authorizations = []
        if self._is(20) and draft.over != GRPC:
            draft.method = "OPTIONS"
            draft.headers.append(f"access-control-request-method: {self._pick(VALUES['methods'])}")

    def _add_key(self, draft: Draft) -> None:
        keys = VALUES["keys"] if self._is(40) else VALUES["keys"][:4]
        draft.headers += [
            f"idempotency-key: {self._pick(keys)}" for _ in range(self._pick((1, 1, 1, 2)))
        ]
        self._keyed.append(draft)

    def _change_fields(self, draft: Draft) -> None:
        kinds = [draft.operation]
        kinds += {
            "find": ["placement", "lobby"],
            "create": ["placement", "lobby"],
            "join": ["placement"],
            "attach": ["lobby"],
        }.get(draft.operation, [])
        odd = self._fields("odd", self._pick(kinds), self._pick(list(LOBBIES)))
        names = BY_SLUG[draft.operation].request.DESCRIPTOR.fields_by_name.keys()
        draft.fields |= {name: value for name, value in odd.items() if name in names}
        if draft.over != GRPC and self._is(30):
            draft.fields[self._pick([*names, "unknown", "", "a\u0000"])] = self._pick(ODD_FIELDS)
            draft.is_json = True

    def _change_body(self, draft: Draft) -> None:
        if draft.over == GRPC:
            draft.change = self._pick(VALUES["wire"])
            return
        draft.is_alone = True
        if self._is(20):
            draft.body, draft.change = draft.body or "{}", "chunked"
        elif self._is(40):
            types = [f"content-type: {one}" for one in CONTENT_TYPES]
            draft.headers.append(self._pick(types))
        else:
            text = json.dumps(draft.fields)
            doubled = f"{text[:-1]}, {text[1:]}" if draft.fields else "{}{}"
            options = [one.replace("...", text) for one in VALUES["bodies"]]
            draft.body = self._pick([*options, text[:-1], doubled, self._pick(ODD_VALUES)])

    def _add_headers(self, draft: Draft) -> None:
        own = {HTTP1: VALUES["headers_of_http1"], GRPC: VALUES["headers_of_grpc"]}.get(
            draft.over, VALUES["headers"]
        )
        draft.headers += self._random.sample(
            own if self._is(40) else VALUES["headers"], k=self._pick((1, 1, 2, 5))
        )
        if self._is(4):
            draft.headers += [f"x-number-{one}: 1" for one in range(self._pick((50, 125, 140)))]
        draft.is_alone = True

    def _change_target(self, draft: Draft) -> None:
        match self._random.randrange(3):
            case 0:
                draft.query = self._pick(VALUES["queries"])
            case 1:
                draft.method = self._pick(VALUES["methods"])
            case _:
                draft.path_change = self._pick(VALUES["paths"])
        draft.is_alone = True

    def _change_peer(self, draft: Draft) -> None:
        draft.peer = TRUSTED_PEER
        draft.headers.append(self._pick(VALUES["proxy_headers"]))


def _in_namespace(namespace: str) -> dict[str, Any]:
    return {"game_id": GAME, "namespace_id": namespace}


def _from_raw(request: GeneratedRequest) -> Request:
    length = f"<length{request.length_error:+}>" if request.length_error else "<length>"
    head = request.line_end.join((request.line, *request.headers, "", "")).replace(
        "<length>", length
    )
    body, tail = request.body.decode("latin-1"), request.tail.decode("latin-1")
    return Request(
        over=HTTP1, operation=request.operation, head=head, body=body, tail=tail, is_alone=True
    )


def _from_call(call: GeneratedCall, over: str) -> Request:
    headers = [f"{name}: {value}" for name, value in call.metadata]
    if over == GRPC:
        change = {None: "", "cut": "cut", "repeated message": "repeat"}.get(call.change)
        if change is None and call.change is not None:
            change = f"tail:{CHANGES[call.change](b'').hex()}"
        path, body = BY_SLUG[call.operation].grpc_path, json.dumps(_message_fields(call.fields))
        head = _head(f"POST {path}", ["host: test", *headers, "content-type: application/grpc"])
        return Request(
            over=over, operation=call.operation, head=head, body=body, change=change or ""
        )
    method, target, content = call.http_parts(lambda template: template)
    head = _head(
        f"{method} {target}", ["host: localhost", "content-type: application/json", *headers]
    )
    return Request(over=over, operation=call.operation, head=head, body=content.decode("latin-1"))
