"""Site hosts under the service's CDN domain. A page of such a host needs no token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import httpx
import pytest

from tests.support.databases import KINDS_OF_OWN_SERVICES, Databases
from tests.support.full_service import ARENA_MODES, Developer, FullService, eventually
from tests.support.upload_files import put_all
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

DOMAIN: Final = "sites.example.com"
FILES_URL: Final = "https://files.example.com"
PAGES: Final = {"prod": b"<h1>The game</h1>", "staging": b"<h1>The next game</h1>"}


@pytest.fixture(scope="module", params=KINDS_OF_OWN_SERVICES)
def full_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[FullService]:
    settings: dict[str, Any] = {"domains": {"cdn": DOMAIN}, "cdn_url": FILES_URL}
    folder = tmp_path_factory.mktemp("domain")
    created = FullService(folder, databases.url(request.param), **settings)
    try:
        yield created.start()
    finally:
        created.close()


@pytest.fixture
async def browser(full_service: FullService) -> AsyncIterator[httpx.AsyncClient]:
    address = f"http://{full_service.ready['cdn']}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:
        yield client


async def show(developer: Developer, game_id: str, namespace: str) -> None:
    content = {"index.html": PAGES[namespace]}
    files = [{"path": "index.html", "content_length": len(PAGES[namespace])}]
    response = await developer.good("create_site", game_id=game_id, display_name="1", files=files)
    (request,) = response["presigned_requests"]
    assert request["url"].startswith(f"{FILES_URL}/")
    base_url = f"http://{developer.full_service.ready['cdn']}"
    request["url"] = base_url + request["url"].removeprefix(FILES_URL)
    await put_all([request], content)
    await developer.good("complete_upload", upload_id=response["upload_id"])
    config = {"cdn": {"site_id": response["site_id"]}, "matchmaker": {"game_modes": ARENA_MODES}}
    version_id = await developer.version(game_id, config)
    target = {"game_id": game_id, "namespace_id": namespace}
    await developer.good("set_version", **target, version_id=version_id)


async def lobby_of(developer: Developer, game_id: str, namespace: str) -> str:
    token = await developer.service_token(game_id, namespace)
    ports = {"game": {"address": "127.0.0.1", "port": 4000}}
    target: dict[str, Any] = {"game_id": game_id, "namespace_id": namespace}
    fields = {**target, "game_mode": "arena", "ports": ports}
    attached = await developer.client.call("attach", fields, token=token)
    assert attached.code == "OK", attached
    ready = await developer.client.call("ready", {}, token=attached.body["lobby_token"])
    assert ready.code == "OK", ready
    return str(attached.body["lobby_id"])


def hosts_of(name: str, namespace: str) -> list[str]:
    own = f"{name}--{namespace}.{DOMAIN}"
    return [f"{name}.{DOMAIN}", own] if namespace == "prod" else [own]


async def summary(developer: Developer, game_id: str) -> Any:
    games = (await developer.good("get_games"))["games"]
    (game,) = [one for one in games if one["game_id"] == game_id]
    return game


async def test_namespace_hosts_find_lobbies_without_a_token(
    developer: Developer, browser: httpx.AsyncClient
) -> None:
    game_id = await developer.game()
    game = await summary(developer, game_id)
    name = game["name_id"]
    assert game["url"] == f"https://{name}.{DOMAIN}"
    for namespace, page in PAGES.items():
        await show(developer, game_id, namespace)
        lobby_id = await lobby_of(developer, game_id, namespace)
        for host in hosts_of(name, namespace):

            async def is_shown(host: str = host, page: bytes = page) -> bool:
                return (await browser.get("/", headers={"host": host})).content == page

            await eventually(is_shown)
            for origin in (f"https://{host}", f"https://{host}:8443"):
                response = await developer.client.call(
                    "find", {"game_modes": ["arena"]}, origin=origin
                )
                assert response.code == "OK", (origin, response)
                assert response.body["lobby"]["lobby_id"] == lobby_id, origin


async def test_unknown_hosts_get_no_site_and_no_access(
    developer: Developer, browser: httpx.AsyncClient
) -> None:
    game_id = await developer.game()
    name = (await summary(developer, game_id))["name_id"]
    await show(developer, game_id, "prod")
    for host in (
        *(DOMAIN, f"{name}--none.{DOMAIN}", f"x.{name}.{DOMAIN}", f"{name}.example.com"),
        *(f"{name}--staging.{DOMAIN}", "files.example.com"),
    ):
        for path in ("/", f"/{name}/prod/"):
            assert (await browser.get(path, headers={"host": host})).status_code == 404, host
        if host != f"{name}--staging.{DOMAIN}":
            answer = await developer.client.call("list", {}, origin=f"https://{host}")
            assert answer.code == "TOKEN_MISSING", host


async def test_hosts_of_a_game_without_a_version_have_access(developer: Developer) -> None:
    """A namespace has its hosts from its creation, before any version is set."""
    game_id = await developer.game()
    name = (await summary(developer, game_id))["name_id"]
    target = {"game_id": game_id, "display_name": "Next", "name_id": "next"}
    versions = (await developer.good("list_versions", game_id=game_id))["versions"]
    await developer.good("create_namespace", **target, version_id=versions[0]["version_id"])
    for host in (*hosts_of(name, "prod"), *hosts_of(name, "staging"), *hosts_of(name, "next")):

        async def is_let_in(host: str = host) -> bool:
            answer = await developer.client.call("list", {}, origin=f"https://{host}")
            return answer.code == "OK"

        await eventually(is_let_in)
