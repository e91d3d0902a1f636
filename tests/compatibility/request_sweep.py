"""Single changes of usual requests, so that each change meets each transport without another one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from tests.compatibility.request_draft import VALUES
from tests.compatibility.request_player import GRPC, HTTP1, HTTP2
from tests.support.full_service import BY_SLUG
from tests.support.generated_requests import AUTHORIZATIONS, CONTENT_TYPES, OTHER_TOKENS

Change = tuple[str, str, str, dict[str, Any]]
"""Transport, operation, lobby and changed attributes of the draft. `usual` and `odd` are fields as JSON."""
_MAIN: Final = ("find", "connected")
_PLACEMENTS: Final = {
    "find": ("placement", "lobby"),
    "create": ("placement", "lobby"),
    "join": ("placement",),
}
_LOBBIES: Final = {"closed": "lobby-3", "detach": "made"}
"""Lobbies of operations after which a lobby takes no players. All others have one lobby."""
_OF_LOBBY: Final = ("join", "get_state", "heartbeat", "ready", "closed", "set_state", "detach")
_OF_ENDED: Final = ("connected", "disconnected")


def single_changes() -> Iterator[Change]:
    """Yields the changes in turns over each transport."""
    for turn in itertools.zip_longest(*map(_changes_over, (HTTP1, HTTP2, GRPC))):
        yield from filter(None, turn)


def _changes_over(over: str) -> Iterator[Change]:
    for operation, change in itertools.chain(
        _fields(), _tokens(over), _headers(over), _parts(over)
    ):
        yield over, operation, _LOBBIES.get(operation, "lobby-1"), change
    for lobby, operation in itertools.product(VALUES["lobbies"], _OF_LOBBY[:3]):
        yield over, operation, lobby, {}
    for lobby, operation in itertools.product(("ended", "starting"), (*_OF_LOBBY[3:], *_OF_ENDED)):
        yield over, operation, lobby, {"usual": VALUES["usual"][operation][0]}


def _fields() -> Iterator[tuple[str, dict[str, Any]]]:
    for operation, texts in VALUES["usual"].items():
        for text in texts:
            yield operation, {"usual": text}
        for kind in (operation, *_PLACEMENTS.get(operation, ())):
            for text in VALUES["odd"].get(kind, ()):
                yield operation, {"odd": text}
    for count in (65_535, 65_536):
        yield "heartbeat", {"fields": {"player_tokens": ["x"] * count}}


def _tokens(over: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each token of each operation, of most operations over one of the transports."""
    offset = (HTTP1, HTTP2, GRPC).index(over)
    for number, (operation, token) in enumerate(
        itertools.product(VALUES["usual"], VALUES["tokens"])
    ):
        if number % 3 == offset or operation in _MAIN:
            yield operation, {"token": token, "usual": VALUES["usual"][operation][-1]}
    for operation in _MAIN:
        token = "own.pub" if operation == "find" else "lobby-1.token"
        forms = [one.format(token=f"<<{token}>>") for one in AUTHORIZATIONS]
        forms += [f"Bearer {one}" for one in OTHER_TOKENS if "<<player>>" not in one]
        forms += [f"Bearer <<{token}|{spelling}>>" for spelling in VALUES["spellings"]]
        for form in forms:
            yield operation, {"authorizations": [form]}
        yield operation, {"authorizations": []}
        yield operation, {"authorizations": [f"Bearer <<{token}>>"] * 2}


def _headers(over: str) -> Iterator[tuple[str, dict[str, Any]]]:
    own = {HTTP1: VALUES["headers_of_http1"], GRPC: VALUES["headers_of_grpc"], HTTP2: []}[over]
    for operation in _MAIN:
        for header in (*VALUES["headers"], *own):
            yield operation, {"headers": [header], "is_alone": True}
        for header, peer in itertools.product(VALUES["proxy_headers"], ("127.0.0.1", "127.0.0.2")):
            yield (
                "regions" if operation == "find" else operation,
                {"headers": [header], "peer": peer},
            )
        for encoding in VALUES["encodings"] if over == GRPC else ():
            for change in ("", "gzip"):
                yield operation, {"headers": [f"grpc-encoding: {encoding}"], "change": change}
    for operation in ("connected", "disconnected", "find", "join", "attach", "ready"):
        for key in VALUES["keys"]:
            yield operation, {"headers": [f"idempotency-key: {key}"]}
        yield operation, {"headers": [f"idempotency-key: {key}" for key in VALUES["keys"][:2]]}
    for operation, origin in itertools.product((*_MAIN, "list"), VALUES["origins"]):
        yield operation, {"headers": [f"origin: {origin}"]}
        if operation == "find":
            yield operation, {"headers": [f"origin: {origin}"], "authorizations": []}
    for operation in VALUES["usual"] if over != GRPC else ():
        asked = f"access-control-request-method: {BY_SLUG[operation].http_method}"
        for origin in (VALUES["origins"][0], *VALUES["origins"][5:7]):
            headers = [f"origin: {origin}", asked]
            yield operation, {"method": "OPTIONS", "headers": headers, "authorizations": []}


def _parts(over: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if over == GRPC:
        for operation, change in itertools.product((*_MAIN, "heartbeat"), VALUES["wire"]):
            yield operation, {"change": change}
        return
    for operation in (*_MAIN, "heartbeat", "attach"):
        for body in VALUES["bodies"]:
            yield operation, {"body": body.replace("...", '{"is_closed": true}'), "is_alone": True}
        for media_type in CONTENT_TYPES:
            yield operation, {"headers": [f"content-type: {media_type}"], "is_alone": True}
    for operation, query in itertools.product(("find", "list", "statistics"), VALUES["queries"]):
        yield operation, {"query": query, "is_alone": True}
    for operation in (*_MAIN, "list", "closed"):
        for method in VALUES["methods"]:
            yield operation, {"method": method, "is_alone": True}
        for path_change in VALUES["paths"]:
            yield operation, {"path_change": path_change, "is_alone": True}
