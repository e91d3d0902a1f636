"""Requests of operations before they are encoded for a transport, and the values of generated ones."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.compatibility.recorded_service import GAME
from tests.compatibility.request_player import GRPC, HTTP1, Request
from tests.support.full_service import BY_SLUG

_BODIES_OF_JSON: Final = ("state", "verification_data", "lobby_config")


def _repeated(value: Any) -> Any:
    """Replaces `{a*3}` by `aaa` in all texts."""
    match value:
        case str():
            return re.sub(r"\{(.)\*(\d+)\}", lambda match: match[1] * int(match[2]), value)
        case list():
            return [_repeated(one) for one in value]
        case dict():
            return {name: _repeated(one) for name, one in value.items()}
    return value


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
            head = head_of(
                f"POST {method.grpc_path}",
                ["host: test", "te: trailers", *headers, *([] if has_type else [type_])],
            )
            return Request(
                head=head, body=json.dumps(message_fields(fields)), change=self.change, **more
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
        head = head_of(_latin(f"{self.method or method.http_method} {path}{query}"), headers)
        change = self.change if self.over == HTTP1 else ""
        return Request(
            head=head, body=_latin(body or ""), change=change, is_alone=self.is_alone, **more
        )


def _latin(text: str) -> str:
    """Returns the bytes of a text as characters."""
    return text.encode(errors="surrogatepass").decode("latin-1")


def head_of(line: str, headers: Sequence[str]) -> str:
    return "\r\n".join((f"{line} HTTP/1.1", *headers, "", ""))


def message_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields in the JSON of protobuf."""
    result = dict(fields)
    for name in result.keys() & set(_BODIES_OF_JSON):
        value = result[name]
        text = value if isinstance(value, str | bytes) else json.dumps(value)
        result[name] = base64.b64encode(text.encode() if isinstance(text, str) else text).decode()
    if isinstance(result.get("player_tokens"), list):
        result["player_tokens"] = {"tokens": result["player_tokens"]}
    return result


def in_namespace(namespace: str) -> dict[str, Any]:
    return {"game_id": GAME, "namespace_id": namespace}
