from __future__ import annotations

import orjson
import pytest

from pyservice.edge.front_contract import problems, routes
from pyservice.schema.methods import METHODS

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


@pytest.mark.parametrize("name", problems())
def test_problem_body_is_complete_with_a_ray_id(name: str) -> None:
    problem = problems()[name]
    assert len(problem.body_parts) == 2
    body = orjson.loads(RAY_ID.join(problem.body_parts))
    assert (body["code"], body["status"]) == (problem.code, problem.status)
    assert body["ray_id"] == RAY_ID.decode()
    assert ("content-type", "application/problem+json") in problem.headers
    names = {name for name, _ in problem.headers}
    assert names.isdisjoint({"content-length", "x-ray-id"})
    assert ("www-authenticate" in names) == (problem.status == 401)


def test_failed_authentications_are_limited_by_name() -> None:
    problem = problems()["rate_limited_failures"]
    assert problem.status == 429
    assert ("retry-after", "1") in problem.headers
    body = orjson.loads(RAY_ID.join(problem.body_parts))
    assert body["metadata"] == {"limit": "failed_authentication"}
