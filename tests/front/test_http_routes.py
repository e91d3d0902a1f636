from __future__ import annotations

from pyservice.front.http_routes import routes
from pyservice.schema.methods import METHODS


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
