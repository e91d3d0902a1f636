from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyservice.transport import TransportSettings
from tests.support.sample_connections import service as service
from tests.support.sample_service import (
    GOOD,
    HttpApi,
    HttpConnection,
    SmallService,
    code_of,
    open_api,
)

pytestmark = pytest.mark.anyio

CONNECTED_PATH = "/matchmaker/players/connected"
ATTACH_PATH = "/cloud/games/arena/namespaces/prod/lobbies/attach"
BODY = b'{"player_token":"some token"}'
ORIGIN = "https://game.example.com"


@pytest.fixture
async def connection(service: SmallService) -> AsyncIterator[HttpConnection]:
    settings = TransportSettings(body_limit_bytes=1000)
    async with open_api("http", service, settings) as api:
        assert isinstance(api, HttpApi)
        connection = await HttpConnection.open(api.address)
        yield connection
        await connection.close()


async def test_response_is_json_with_its_length(connection: HttpConnection) -> None:
    response = await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)
    assert (response.status, response.body) == (200, b"{}")
    assert response.headers["content-type"] == "application/json"


async def test_problem_body_has_every_field(connection: HttpConnection) -> None:
    response = await connection.ask("POST", CONNECTED_PATH, b'{"player_token":"used"}', GOOD)
    assert response.status == 409
    problem = response.json
    assert problem.pop("ray_id") == response.headers["x-ray-id"]
    assert problem.pop("detail") == problem.pop("message") != ""
    assert problem.pop("title")
    assert problem == {
        "type": "urn:hosting:problem:player-token-consumed",
        "status": 409,
        "code": "PLAYER_TOKEN_CONSUMED",
        "metadata": {"since_ms": "5"},
    }


@pytest.mark.parametrize(
    "path", ["/nowhere", "/", "/matchmaker/players/connected/", "/%2e%2e", "/%ff"]
)
async def test_unknown_path_is_not_found(connection: HttpConnection, path: str) -> None:
    response = await connection.ask("POST", path, BODY, GOOD)
    assert (response.status, code_of(response)) == (404, "NOT_FOUND")


async def test_percent_encoded_path_is_equivalent_except_slashes(
    connection: HttpConnection,
) -> None:
    response = await connection.ask("POST", "/%6datchmaker/players/%63onnected", BODY, GOOD)
    assert response.status == 200
    for slash in ("%2F", "%2f"):
        path = f"/matchmaker{slash}players/connected"
        assert (await connection.ask("POST", path, BODY, GOOD)).status == 404
        path = f"/matchmaker/lobbies/a{slash}b/state"
        assert code_of(await connection.ask("GET", path, None, GOOD)) == "ID_INVALID"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_wrong_method_returns_the_allowed_methods(
    connection: HttpConnection, method: str
) -> None:
    for path, allowed in ((CONNECTED_PATH, "POST"), ("/matchmaker/lobbies/x/state", "GET, HEAD")):
        if method not in allowed.split(", "):
            response = await connection.ask(method, path)
            assert response.status == 405
            assert method == "HEAD" or code_of(response) == "METHOD_NOT_ALLOWED"
            assert response.headers["allow"] == allowed


async def test_head_returns_the_headers_of_get(connection: HttpConnection) -> None:
    path = "/matchmaker/lobbies/list?include_state=true"
    expected = await connection.ask("GET", path, None, GOOD)
    response = await connection.ask("HEAD", path, None, GOOD)
    assert (response.status, response.body) == (200, b"")
    for name in ("content-type", "content-length"):
        assert response.headers[name] == expected.headers[name]


async def test_rejected_token_returns_the_scheme(connection: HttpConnection) -> None:
    response = await connection.ask("POST", CONNECTED_PATH, BODY)
    assert (response.status, code_of(response)) == (401, "TOKEN_MISSING")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_media_type_other_than_json_is_rejected(connection: HttpConnection) -> None:
    headers = {**GOOD, "content-type": "text/plain"}
    response = await connection.ask("POST", CONNECTED_PATH, BODY, headers)
    assert (response.status, code_of(response)) == (415, "MEDIA_TYPE_UNSUPPORTED")


async def test_body_with_an_encoding_is_rejected(connection: HttpConnection) -> None:
    headers = {**GOOD, "content-encoding": "gzip"}
    response = await connection.ask("POST", CONNECTED_PATH, BODY, headers)
    assert (response.status, code_of(response)) == (415, "MEDIA_TYPE_UNSUPPORTED")
    assert "Content-Encoding: gzip" in response.json["detail"]
    headers["content-encoding"] = "identity"
    assert (await connection.ask("POST", CONNECTED_PATH, BODY, headers)).status == 200


async def test_two_tokens_are_rejected(connection: HttpConnection, service: SmallService) -> None:
    connection.writer.write(
        f"POST {CONNECTED_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pub_good\r\n"
        f"Authorization: Bearer pub_good\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )
    assert code_of(await connection.read()) == "TOKEN_INVALID"
    assert service.calls == []


async def test_query_is_parsed(connection: HttpConnection) -> None:
    path = "/matchmaker/lobbies/list?include_state="
    response = await connection.ask("GET", path + "true", None, GOOD)
    assert response.json["lobbies"][0]["state"] == {"big": 2**64 - 1}
    response = await connection.ask("GET", path + "yes&other=1", None, GOOD)
    assert (response.status, code_of(response)) == (400, "QUERY_INVALID")
    paths = [problem["path"] for problem in response.json["errors"]]
    assert ["include_state", "wrong-type"] in paths
    assert ["other", "unknown-parameter"] in paths


async def test_path_is_known_before_the_body(
    connection: HttpConnection, service: SmallService
) -> None:
    body = b'{"game_mode":"duel"}'
    response = await connection.ask("POST", ATTACH_PATH, body, {"authorization": "Bearer env_1"})
    assert response.status == 200
    assert service.calls[0].path == {"game_id": "arena", "namespace_id": "prod"}


async def test_user_agent_and_origin_are_passed_to_the_operation(
    connection: HttpConnection, service: SmallService
) -> None:
    headers = {**GOOD, "user-agent": "engine/1.0", "origin": ORIGIN}
    await connection.ask("POST", CONNECTED_PATH, BODY, headers)
    assert (service.calls[0].user_agent, service.calls[0].origin) == ("engine/1.0", ORIGIN)
