from __future__ import annotations

import pytest

from pyservice.cdn.site_routes import Route, SiteRoutes
from pyservice.network.reserved_names import HEADERS_OF_A_CONNECTION, HEADERS_OF_ANSWERS

FORBIDDEN = HEADERS_OF_A_CONNECTION | HEADERS_OF_ANSWERS | {"proxy-connection", "proxy-x"}


def test_headers_of_matching_routes_merge_by_priority() -> None:
    routes = SiteRoutes(
        [
            Route("**", 1, [("X-A", "low"), ("x-b", "low")]),
            Route("*.js", 9, [("x-a", "high"), ("X-C", "high")]),
            Route("*.css", 50, [("x-a", "css")]),
        ]
    )
    assert routes.headers("a.js") == {"x-a": "high", "x-b": "low", "x-c": "high"}
    assert routes.headers("a.css") == {"x-a": "css", "x-b": "low"}
    assert routes.headers("a.png") == {"x-a": "low", "x-b": "low"}


def test_first_route_wins_at_equal_priority() -> None:
    routes = SiteRoutes([Route("*", 5, [("x-a", "first")]), Route("a*", 5, [("x-a", "second")])])
    assert routes.headers("a") == {"x-a": "first"}


def test_later_duplicate_header_in_a_route_wins() -> None:
    routes = SiteRoutes([Route("*", 5, [("x-a", "1"), ("X-A", "2")])])
    assert routes.headers("a") == {"x-a": "2"}


def test_route_cannot_set_the_ray_id() -> None:
    assert "x-ray-id" in FORBIDDEN


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
def test_route_cannot_set_connection_and_server_headers(name: str) -> None:
    routes = SiteRoutes([Route("**", 100, [(name.title(), "1"), ("x-ok", "1")])])
    assert routes.headers("a") == {"x-ok": "1"}


@pytest.mark.parametrize(
    ("name", "value"), [("x a", "1"), ("", "1"), ("x:y", "1"), ("x", "1\r\ny: 2"), ("x", "é")]
)
def test_invalid_headers_are_omitted(name: str, value: str) -> None:
    assert SiteRoutes([Route("**", 1, [(name, value)])]).headers("a") == {}


def test_routes_are_correct_beyond_the_cache_size() -> None:
    routes = SiteRoutes([Route("*7", 1, [("x-a", "1")])])
    for number in range(5000):
        assert bool(routes.headers(str(number))) == str(number).endswith("7")
