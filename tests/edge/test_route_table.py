from __future__ import annotations

from dataclasses import replace

import pytest

from pyservice.edge.route_table import RouteTable
from pyservice.errors import ServiceError
from pyservice.schema.methods import METHODS

GAME = "01a1f816-c6c0-75cf-aea6-491dc6e0571b"


@pytest.fixture(scope="module")
def routes() -> RouteTable:
    return RouteTable(METHODS.values())


@pytest.mark.parametrize(
    ("verb", "path", "slug", "parameters"),
    [
        ("POST", "/matchmaker/lobbies/find", "find", {}),
        ("POST", "/matchmaker/lobbies/join", "join", {}),
        ("GET", "/matchmaker/lobbies/list", "list", {}),
        ("GET", "/matchmaker/regions", "regions", {}),
        ("GET", "/matchmaker/players/statistics", "statistics", {}),
        ("POST", "/matchmaker/players/connected", "connected", {}),
        ("POST", "/matchmaker/players/disconnected", "disconnected", {}),
        ("POST", "/matchmaker/lobbies/ready", "ready", {}),
        ("PUT", "/matchmaker/lobbies/closed", "closed", {}),
        ("PUT", "/matchmaker/lobbies/state", "set_state", {}),
        ("GET", "/matchmaker/lobbies/x/state", "get_state", {"lobby_id": "x"}),
        ("POST", "/matchmaker/lobbies/heartbeat", "heartbeat", {}),
        (
            "POST",
            f"/cloud/games/{GAME}/namespaces/prod/lobbies/attach",
            "attach",
            {"game_id": GAME, "namespace_id": "prod"},
        ),
        (
            "DELETE",
            "/cloud/games/arena/matchmaker/lobbies/x",
            "detach",
            {"game_id": "arena", "lobby_id": "x"},
        ),
    ],
)
def test_every_operation_has_its_documented_route(
    routes: RouteTable, verb: str, path: str, slug: str, parameters: dict[str, str]
) -> None:
    method, path_parameters = routes.match(verb, path)
    assert method.slug == slug
    assert path_parameters == parameters


def test_no_operation_is_missing(routes: RouteTable) -> None:
    for method in METHODS.values():
        path = method.template.replace("{", "").replace("}", "")
        match, _ = routes.match(method.http_method, path)
        assert match is method


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/matchmaker",
        "/matchmaker/lobbies/find/",
        "//matchmaker/lobbies/find",
        "/Matchmaker/lobbies/find",
        "/matchmaker/lobbies//state",
        "/matchmaker/lobbies/a/b/state",
        "/cloud/games//matchmaker/lobbies/x",
        "/matchmaker/lobbies/{lobby_id}/status",
    ],
)
def test_unknown_path_is_not_found(routes: RouteTable, path: str) -> None:
    with pytest.raises(ServiceError) as raised:
        routes.match("GET", path)
    assert raised.value.code == "NOT_FOUND"


@pytest.mark.parametrize(
    ("verb", "path", "allow"),
    [
        ("GET", "/matchmaker/lobbies/find", "POST"),
        ("post", "/matchmaker/lobbies/find", "POST"),
        ("HEAD", "/matchmaker/regions", "GET"),
        ("DELETE", "/matchmaker/lobbies/x/state", "GET"),
        ("PROPFIND", "/cloud/games/a/matchmaker/lobbies/x", "DELETE"),
    ],
)
def test_wrong_method_returns_the_allowed_methods(
    routes: RouteTable, verb: str, path: str, allow: str
) -> None:
    with pytest.raises(ServiceError) as raised:
        routes.match(verb, path)
    assert raised.value.code == "METHOD_NOT_ALLOWED"
    assert raised.value.headers == {"allow": allow}


@pytest.mark.parametrize(
    ("sent", "lobby_id"),
    [
        ("team%2Falice", "team/alice"),
        ("team%2falice", "team/alice"),
        ("%2F", "/"),
        ("team%252Falice", "team%2Falice"),
        ("%252f%2F%25252F", "%2f/%252F"),
        ("%c3%a9%2F%C3%A9", "é/é"),
        ("%61%2F..", "a/.."),
    ],
)
def test_encoded_slash_belongs_to_its_parameter(
    routes: RouteTable, sent: str, lobby_id: str
) -> None:
    path = f"/cloud/games/arena/matchmaker/lobbies/{sent}"
    method, parameters = routes.match("DELETE", path)
    assert (method.slug, parameters) == ("detach", {"game_id": "arena", "lobby_id": lobby_id})


@pytest.mark.parametrize("slash", ["%2F", "%2f", "%252F"])
@pytest.mark.parametrize("path", ["/matchmaker*regions", "/matchmaker/lobbies/a*state"])
def test_encoded_slash_does_not_split_the_path(routes: RouteTable, path: str, slash: str) -> None:
    with pytest.raises(ServiceError) as raised:
        routes.match("GET", path.replace("*", slash))
    assert raised.value.code == "NOT_FOUND"


def test_fixed_path_precedes_a_template_without_hiding_it() -> None:
    get_state = METHODS["hosting.v1.Matchmaker.GetLobbyState"]
    fixed_get = replace(get_state, slug="fixed", template="/a/fixed/state", path_fields=())
    by_id = replace(get_state, template="/a/{lobby_id}/state", http_method="GET")
    put_by_id = replace(by_id, slug="put", http_method="PUT")
    routes = RouteTable([by_id, put_by_id, fixed_get])
    assert routes.match("GET", "/a/fixed/state") == (fixed_get, {})
    assert routes.match("GET", "/a/other/state") == (by_id, {"lobby_id": "other"})
    assert routes.match("PUT", "/a/fixed/state") == (put_by_id, {"lobby_id": "fixed"})
    with pytest.raises(ServiceError) as raised:
        routes.match("POST", "/a/fixed/state")
    assert raised.value.headers == {"allow": "GET, PUT"}


@pytest.mark.parametrize("name", ["FindLobby", "GetLobbyState"])
def test_duplicate_route_fails_the_start(name: str) -> None:
    method = METHODS[f"hosting.v1.Matchmaker.{name}"]
    with pytest.raises(ValueError, match=method.template.partition("{")[0]):
        RouteTable([method, replace(method, slug="other")])
