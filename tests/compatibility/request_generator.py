"""Generated requests of all matchmaker operations, from usual to malformed, in rounds with new lobbies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from tests.compatibility.recorded_service import GAME, LIMITED_PEER, PORTS, TRUSTED_PEER
from tests.compatibility.request_draft import VALUES, Draft, head_of, in_namespace, message_fields
from tests.compatibility.request_player import GRPC, HTTP1, HTTP2, Request
from tests.compatibility.request_sweep import single_changes
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
        yield replace(
            self._usual("attach", "own.env", **_attach("own", "brief", "west")), lobby="brief"
        )
        yield self._usual("ready", "brief.token")
        yield self._usual("join", "own.env", lobby_id="<<brief.id>>", party_size=9)
        brief = [name for name, _ in self._players]
        for number in range(rounds):
            self._players.clear()
            self._keyed.clear()
            yield from self._begin_round()
            if number == 0:
                yield from self._sweep()
            for _ in range(draws):
                yield from self._draw()
            if number == rounds - 1:
                yield from self._administer()
            yield from self._end_round()
        for name in brief:
            # Their time has passed since the first round.
            yield self._usual("connected", "brief.token", player_token=f"<<{name}>>")
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
        for lobby, (namespace, mode, region, players) in VALUES["lobbies"].items():
            attach = _attach(namespace, mode, region)
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
        for lobby, (namespace, *_) in VALUES["lobbies"].items():
            where = {"game_id": GAME, "lobby_id": f"<<{lobby}.id>>"}
            yield self._usual("detach", f"{namespace}.env", **where)

    def _sweep(self) -> Iterator[Request]:
        """Sends usual requests with one change each, over each transport."""
        players: list[str] = []
        for over, operation, lobby, change in single_changes():
            if operation == "connected" and "fields" not in change and "odd" not in change:
                if not players:
                    yield self._usual("join", "own.env", lobby_id="<<lobby-1.id>>", party_size=64)
                    players = [name for name, _ in self._players[-64:]]
                change["fields"] = {"player_token": f"<<{players.pop()}>>"}
            draft = self._draft(operation, lobby, over, change.pop("usual", None))
            draft.fields |= self._parsed(change.pop("odd", "{}"), lobby)
            yield replace(draft, **change).request()
        yield from self._scenarios()

    def _scenarios(self) -> Iterator[Request]:
        """Sends each scenario over each transport, and once over all in turns."""
        for run, doors in enumerate((DOORS[:1], DOORS[1:2], DOORS[2:3], DOORS)):
            for lobby, steps in VALUES["scenarios"].items():
                namespace = VALUES["lobbies"][lobby][0]
                yield self._usual("join", f"{namespace}.env", lobby_id=f"<<{lobby}.id>>")
                player = self._players[-1][0]
                for number, (operation, token, text, key) in enumerate(steps):
                    fields = json.loads(text.replace("<<player>>", f"<<{player}>>"))
                    if operation == "attach":
                        fields = {"game_id": GAME, "ports": PORTS, **fields}
                    headers = [f"idempotency-key: {key}-{run}"] if key else []
                    over = doors[number % len(doors)]
                    yield Draft(
                        over=over, operation=operation, token=token, fields=fields, headers=headers
                    ).request()

    def _administer(self) -> Iterator[Request]:
        """Refuses clients without a token for a time. Then the lobbies drain for a time."""
        fields: dict[str, dict[str, Any]] = {
            "find": {"game_modes": ["hall"]},
            "join": {"lobby_id": "<<lobby-1.id>>"},
        }
        where = in_namespace("prod")
        origin = [f"origin: {VALUES['origins'][0]}"]
        for step in (
            {"enabled": False},
            {"enabled": True},
            {"version_id": "<<next.version>>"},
            {"version_id": "<<prod.version>>"},
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
                draft = self._draft(
                    operation, self._pick(list(VALUES["lobbies"])), self._pick(DOORS)
                )
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

    def _draft(self, operation: str, lobby: str, over: str, text: str | None = None) -> Draft:
        """Returns a usual request with the fields in the text, or other ones."""
        token = self._pick(("own.pub", "own.pub", "own.env"))
        if operation in OF_SERVERS:
            token = f"{lobby}.token"
        elif operation in ("attach", "detach", "get_state"):
            token = self._pick(("own.env", "own.env", "own.env", "cloud"))
        fields = {
            "attach": {**in_namespace("prod"), "ports": PORTS},
            "detach": {"game_id": GAME},
        }.get(operation, {})
        fields |= self._parsed(text or self._pick(VALUES["usual"][operation]), lobby)
        return Draft(over=over, operation=operation, token=token, fields=fields)

    def _parsed(self, text: str, lobby: str) -> dict[str, Any]:
        text = self._with_players(text.replace("<<lobby.", f"<<{lobby}."), lobby)
        fields: dict[str, Any] = json.loads(text)
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
                draft.fields |= self._parsed(
                    self._pick(VALUES["usual"][draft.operation]),
                    self._pick(list(VALUES["lobbies"])),
                )
            case 1:
                draft.authorizations = [f"Bearer <<{self._pick(VALUES['tokens'])}>>"]
            case 2:
                draft.operation = "join" if draft.operation == "find" else "disconnected"
                draft.fields = self._parsed(self._pick(VALUES["usual"][draft.operation]), "lobby-1")
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
        odd = self._parsed(
            self._pick(VALUES["odd"].get(self._pick(kinds), ("{}",))),
            self._pick(list(VALUES["lobbies"])),
        )
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


def _attach(namespace: str, mode: str, region: str) -> dict[str, Any]:
    where = in_namespace({"own": "prod"}.get(namespace, namespace))
    tags = {"tags": {"map": "hill", "level": "3"}} if mode == "tagged" else {}
    return {**where, "game_mode": mode, "region": region, "ports": PORTS, **tags}


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
        path, body = BY_SLUG[call.operation].grpc_path, json.dumps(message_fields(call.fields))
        head = head_of(
            f"POST {path}",
            ["host: test", "te: trailers", *headers, "content-type: application/grpc"],
        )
        return Request(
            over=over, operation=call.operation, head=head, body=body, change=change or ""
        )
    method, target, content = call.http_parts(lambda template: template)
    head = head_of(
        f"{method} {target}", ["host: localhost", "content-type: application/json", *headers]
    )
    return Request(over=over, operation=call.operation, head=head, body=content.decode("latin-1"))
