from __future__ import annotations

import orjson
import pytest

from pyservice.edge.front_contract import http_form, routes
from pyservice.schema.methods import METHODS
from pyservice.transport.front_errors import front_errors

ERRORS = front_errors(["PLAYER_TOKEN_INVALID"])
RAY_ID = b"0af7651916cd43dd8448eb211c80319c"


def test_routes_contain_every_operation_with_its_limit() -> None:
    by_slug = {route.slug: route for route in routes(1000)}
    assert by_slug.keys() == {method.slug for method in METHODS.values()}
    assert by_slug["join"].body_limit_bytes == 1000
    assert by_slug["set_state"].body_limit_bytes == 65_536
    assert by_slug["connected"].needs_token
    assert not by_slug["join"].needs_token


def test_routes_name_the_plane_of_each_operation() -> None:
    of_data_plane = {route.slug for route in routes(1) if not route.is_control}
    assert of_data_plane == {
        *("find", "create", "join", "list", "regions", "statistics", "live_events"),
        *("connected", "disconnected", "ready", "closed", "set_state", "get_state", "heartbeat"),
        *("attach", "detach"),
    }


@pytest.mark.parametrize("name", ERRORS)
def test_error_body_is_complete_with_a_ray_id(name: str) -> None:
    status, headers, body_parts = http_form(ERRORS[name])
    assert len(body_parts) == 2
    body = orjson.loads(RAY_ID.join(body_parts))
    assert (body["code"], body["status"]) == (ERRORS[name].code, status)
    assert body["ray_id"] == RAY_ID.decode()
    assert ("content-type", "application/problem+json") in headers
    names = {name for name, _ in headers}
    assert names.isdisjoint({"content-length", "x-ray-id"})
    assert ("www-authenticate" in names) == (status == 401)


@pytest.mark.parametrize("scope", ["all", "address", "token", "no_own_token"])
def test_overload_states_no_number(scope: str) -> None:
    """The limits of the planes and of streams differ, and their errors do not."""
    detail = ERRORS[f"overloaded_{scope}"].detail
    assert detail.startswith("Too many requests")
    assert not any(character.isdigit() for character in detail)


def test_failed_authentications_are_limited_by_name() -> None:
    status, headers, body_parts = http_form(ERRORS["rate_limited_failures"])
    assert status == 429
    assert ("retry-after", "1") in headers
    body = orjson.loads(RAY_ID.join(body_parts))
    assert body["metadata"] == {"limit": "failed_authentication"}
