"""One request over four ways: HTTP and gRPC, each over the front and directly to Python.

Each way has a twin. A service with `front = "off"` serves the two direct ways.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from pyservice.edge.http_json_codec import encoder
from pyservice.pb.errors import TABLE
from tests.support.data_plane_clients import RawResponse
from tests.support.generated_messages import METHOD_OF, GeneratedCall
from tests.support.generated_requests import TRACE_ID
from tests.support.raw_grpc_calls import Answer, call
from tests.support.twin import Twin, player_tokens

WAYS: Final = ("front-http", "python-http", "front-grpc", "python-grpc")
WITH_OWN_JSON: Final = ("get_version", "get_state")
"""Operations with another JSON than that of protobuf."""
OF_FRONT_ALONE: Final = (
    *("vary", "access-control-allow-origin", "access-control-expose-headers"),
    # Python sends the code to the front.
    "x-hosting-code",
    # Their form depends on the ray id and the content, which are compared.
    *("x-ray-id", "content-length", "grpc-status-details-bin"),
)
"""Headers that the front adds, and headers with values of one response."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Response without ids, tokens, and the time of a retry."""

    code: str
    message: str
    content: Any
    errors: list[tuple[list[str], str]]
    metadata: dict[str, str]
    is_retryable: bool
    ray_id: str
    token_count: int
    of_transport: tuple[str, dict[str, Any]] = field(compare=False)
    """Status and headers, which the ways of one transport have in common."""

    @property
    def expected_status(self) -> tuple[str, str | None]:
        """Statuses of the code over HTTP and gRPC."""
        return (
            ("200", "OK")
            if self.code == "OK"
            else (str(TABLE[self.code].http), TABLE[self.code].grpc)
        )


@dataclass(frozen=True, slots=True)
class Compared:
    code: str
    """Code of the first way."""
    difference: str | None
    bodies: list[bytes]
    """Successful responses as JSON, one for each twin."""


class Ways:
    """Some of the ways, each with its twin."""

    def __init__(self, twins: Sequence[Twin], grpc_addresses: Mapping[str, str]) -> None:
        self._twins = twins
        self._channels = {
            way: grpc.aio.insecure_channel(address) for way, address in grpc_addresses.items()
        }

    async def close(self) -> None:
        for twin in self._twins:
            await twin.client.close()
        for channel in self._channels.values():
            await channel.close()

    async def compare(self, generated: GeneratedCall) -> Compared:
        sent = await asyncio.gather(*(self._send(twin, generated) for twin in self._twins))
        outcomes = {
            twin.name: outcome for twin, (outcome, _) in zip(self._twins, sent, strict=True)
        }
        difference = _difference(outcomes)
        return Compared(
            sent[0][0].code,
            difference and f"{generated}\n{difference}",
            [body for _, body in sent],
        )

    async def _send(self, twin: Twin, generated: GeneratedCall) -> tuple[Outcome, bytes]:
        """Returns the outcome, and the body of a successful response as JSON."""
        metadata = generated.filled_metadata(twin.fill)
        if twin.name.endswith("http"):
            method, target, body = generated.http_parts(twin.fill)
            request = twin.client.request_bytes(method, target, dict(metadata), body)
            response = await twin.client.send(request, generated.operation)
            return _http_outcome(twin, generated.operation, response), response.body
        path = METHOD_OF[generated.operation].grpc_path
        answer = await call(self._channels[twin.name], path, generated.message(twin.fill), metadata)
        message = METHOD_OF[generated.operation].response.FromString(answer.data)
        fields = _content(generated.operation, message)
        return _grpc_outcome(twin, answer, fields), json.dumps(fields).encode()


def _difference(outcomes: dict[str, Outcome]) -> str | None:
    first = next(iter(outcomes.values()))
    transports: dict[str, tuple[str, dict[str, Any]]] = {}
    for way, outcome in outcomes.items():
        of_transport = transports.setdefault(way.partition("-")[2], outcome.of_transport)
        is_same = outcome == first and outcome.of_transport == of_transport
        if not is_same or outcome.of_transport[0] not in outcome.expected_status:
            return "\n".join(f"{name}: {one}" for name, one in outcomes.items())
    return None


def _http_outcome(twin: Twin, operation: str, response: RawResponse) -> Outcome:
    headers = response.headers
    ray_id = headers["x-ray-id"]
    is_ok = response.status == 200
    body = twin.with_names(response.body.replace(ray_id.encode(), b"ray id"))
    content = json.loads(body)
    of_transport = str(response.status), _common(headers) | {"body": content}
    if is_ok and operation not in WITH_OWN_JSON:
        message = ParseDict(json.loads(response.body), METHOD_OF[operation].response())
        content = json.loads(twin.with_names(json.dumps(_content(operation, message)).encode()))
    problem = {} if is_ok else content
    return Outcome(
        "OK" if is_ok else problem["code"],
        problem.get("detail", ""),
        content if is_ok else None,
        [(error["path"], error["message"]) for error in problem.get("errors", ())],
        problem.get("metadata", {}),
        "retry-after" in headers,
        _comparable_ray(ray_id),
        len(player_tokens(response.body)) if is_ok else 0,
        of_transport,
    )


def _grpc_outcome(twin: Twin, answer: Answer, fields: dict[str, Any]) -> Outcome:
    details: dict[str, Any] = answer.details
    named = twin.with_names(json.dumps([fields, details, answer.message]).encode())
    content, details, message = json.loads(named)
    violations = details.get("BadRequest", {}).get("fieldViolations", ())
    is_ok = answer.code == "OK"
    return Outcome(
        answer.code,
        message,
        content if is_ok else None,
        [(_path(one), one["description"]) for one in violations],
        details.get("ErrorInfo", {}).get("metadata", {}),
        "RetryInfo" in details,
        _comparable_ray(str(answer.trailers.get("x-ray-id", ""))),
        len(player_tokens(answer.data)),
        (answer.status.name, _common(answer.trailers)),
    )


def _content(operation: str, message: Message) -> Any:
    """Returns the fields of a response."""
    if operation in WITH_OWN_JSON:
        return json.loads(encoder(METHOD_OF[operation])(message))
    return MessageToDict(message, preserving_proto_field_name=True)


def _path(violation: dict[str, str]) -> list[str]:
    names = violation["field"].split(".") if violation.get("field") else []
    return [*names, violation["reason"].lower().replace("_", "-")]


def _comparable_ray(ray_id: str) -> str:
    return ray_id if ray_id == TRACE_ID else f"{len(ray_id)} digits"


def _common(headers: Any) -> dict[str, Any]:
    common = {name: value for name, value in headers.items() if name not in OF_FRONT_ALONE}
    return common | ({"retry-after": ""} if "retry-after" in common else {})
