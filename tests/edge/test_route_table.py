from __future__ import annotations

from dataclasses import replace

import pytest

from pyservice.edge.route_table import RouteTable
from pyservice.schema.methods import METHODS


@pytest.fixture(scope="module")
def routes() -> RouteTable:
    return RouteTable(METHODS.values())


def test_no_operation_is_missing(routes: RouteTable) -> None:
    for method in METHODS.values():
        path = method.template.replace("{", "").replace("}", "")
        match, _ = routes.match(method.http_method, path)
        assert match is method


@pytest.mark.parametrize("name", ["FindLobby", "GetLobbyState"])
def test_duplicate_route_fails_the_start(name: str) -> None:
    method = METHODS[f"hosting.v1.Matchmaker.{name}"]
    with pytest.raises(ValueError, match=method.template.partition("{")[0]):
        RouteTable([method, replace(method, slug="other")])
