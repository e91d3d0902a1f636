"""Generated requests get the same answers from the front as from Python, and leave the same state."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.faults.conftest import MakePlane
from tests.support.data_plane_clients import RawResponse, read_response
from tests.support.front_metrics import answers_of_front
from tests.support.generated_requests import (
    PATHS,
    PLACEMENTS,
    TRACE_ID,
    GeneratedRequest,
    RequestGenerator,
)
from tests.support.killable_plane import Plane
from tests.support.twin_namespaces import (
    SETTINGS,
    Twin,
    TwinNamespaces,
    player_tokens,
    start_twins,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

NOT_PLAIN: Final = "x-not-plain: 1"
"""A header that changes no answer. The front leaves a request with it to Python."""
RENEW_EVERY: Final = 250
"""Requests after which the lobbies are replaced, so that some have free slots."""
SHARE_MIN: Final = 0.15
DIFFERENCES_MAX: Final = 5
RESPONSE_TIMEOUT_S: Final = 30.0
CONTINUE: Final = 100


@dataclass
class Comparison:
    request_count: int = 0
    front_answers: Counter[str] = field(default_factory=Counter)
    """Number of requests that the front has answered itself, by operation."""
    codes: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 300), pytest.param(2, 5_000, marks=pytest.mark.full)]
)
async def test_front_answers_generated_requests_as_python_does(
    make_plane: MakePlane, seed: int, count: int
) -> None:
    print(f"seed {seed}")
    plane = make_plane(shim=None, settings=SETTINGS)
    comparison = await compare_answers(plane, seed, count)
    print(comparison.codes, comparison.front_answers)
    assert not comparison.differences, "\n\n".join(comparison.differences)
    assert comparison.request_count == count
    assert comparison.front_answers.total() >= SHARE_MIN * count
    assert comparison.front_answers.keys() == PATHS.keys()


async def test_front_answers_no_request_beyond_the_limits_of_the_settings(
    make_plane: MakePlane,
) -> None:
    limits = {"header_bytes": 1_024, "body_bytes": 1_024}
    plane = make_plane(shim=None, settings=SETTINGS | {"http_limits": limits})
    comparison = await compare_answers(plane, 3, 1_000)
    assert not comparison.differences, "\n\n".join(comparison.differences)
    assert comparison.codes["BODY_TOO_LARGE"]
    assert comparison.codes["HEADERS_TOO_LARGE"]


async def compare_answers(plane: Plane, seed: int, count: int) -> Comparison:
    """Sends each generated request to one namespace over the front, and to an equal one over Python.

    Stops after a few differences.
    """
    comparison = Comparison()
    namespaces = await start_twins(plane)
    generator = RequestGenerator(seed, namespaces.players)
    while comparison.request_count < count:
        await namespaces.renew()
        before = await _front_answers(plane)
        for _ in range(min(RENEW_EVERY, count - comparison.request_count)):
            request = generator.draw()
            comparison.request_count += 1
            difference = await _compare_request(namespaces, request, comparison.codes)
            if difference:
                comparison.differences.append(difference)
                break
        else:
            front, python = await namespaces.slots()
            if front != python:
                comparison.differences.append(f"slots: {front} and {python}")
        comparison.front_answers += await _front_answers(plane) - before
        if len(comparison.differences) >= DIFFERENCES_MAX:
            break
    for twin in namespaces.twins:
        await twin.client.close()
    return comparison


async def _front_answers(plane: Plane) -> Counter[str]:
    return Counter({operation: await answers_of_front(plane, operation) for operation in PATHS})


async def _compare_request(
    namespaces: TwinNamespaces, request: GeneratedRequest, codes: Counter[str]
) -> str | None:
    """Returns a description of the difference, or None."""
    over_front, over_python = namespaces.twins
    sent = request.to_bytes(over_front.fill)
    responses = await asyncio.gather(
        _send(over_front, sent, request),
        _send(over_python, request.to_bytes(over_python.fill, NOT_PLAIN), request),
    )
    front, python = (
        [_comparable(twin, response) for response in of_twin]
        for twin, of_twin in zip(namespaces.twins, responses, strict=True)
    )
    if front != python:
        return f"{request}\n{sent!r}\nfront:  {front}\npython: {python}"
    code = front[0]["code"] if front and front[0] else "none"
    codes[code] += 1
    if code == "OK" and request.operation in PLACEMENTS:
        first = [of_twin[0] for of_twin in responses]
        namespaces.add_placed_players([response for response in first if response is not None])
    return None


async def _send(twin: Twin, content: bytes, request: GeneratedRequest) -> list[RawResponse | None]:
    """Returns the responses over a new connection. None stands for the end of the connection."""
    response_count = request.response_count
    split = int(len(content) * request.split)
    responses: list[RawResponse | None] = []
    async with twin.client.connection() as (reader, writer):
        try:
            writer.write(content[:split])
            if split < len(content):
                # The other way runs meanwhile.
                await asyncio.sleep(0)
                writer.write(content[split:])
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                while response_count:
                    response = await read_response(reader)
                    responses.append(response)
                    response_count -= response.status != CONTINUE
        except (EOFError, ConnectionError):
            responses.append(None)
    return responses


def _comparable(twin: Twin, response: RawResponse | None) -> dict[str, Any] | None:
    """Returns the parts that must be equal: all but ids, tokens, and the time of a retry."""
    if response is None:
        return None
    headers = dict(response.headers)
    ray_id = headers.get("x-ray-id", "")
    if ray_id != TRACE_ID:
        headers["x-ray-id"] = f"{len(ray_id)} digits"
    if "retry-after" in headers:
        headers["retry-after"] = ""
    body = response.body.replace(ray_id.encode(), b"ray id") if ray_id else response.body
    content = json.loads(twin.with_names(body)) if body else {}
    return {
        "status": response.status,
        "headers": headers,
        "code": "OK" if response.status == 200 else content.get("code", str(response.status)),
        "body": content,
        "tokens": len(player_tokens(response.body)),
    }
