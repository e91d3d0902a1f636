"""Whole service with domains: API, sites and game servers behind one address, over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.app.domain_service import (
    API,
    CDN,
    DEVELOPER,
    FILES,
    JOB,
    LINKS,
    PROXY,
    WEB,
    Domain,
    Game,
    at_api,
    browser_at,
    echo_at,
    echoed_datagram,
    served_certificate,
    talks,
    web_socket,
)
from tests.support import game_programs
from tests.support.full_service import ARENA_MODES, Developer, eventually, running
from tests.support.game_back_end import GameBackEnd
from tests.support.third_party_server import third_party_server

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Domain]:
    with running(Domain(tmp_path_factory.mktemp("d"))) as service:
        yield service


@pytest.fixture
async def developer(domain: Domain) -> AsyncIterator[Developer]:
    async with at_api(domain, DEVELOPER) as client:
        yield Developer(domain, client)


@pytest.fixture
async def game(domain: Domain, developer: Developer) -> Game:
    return Game(domain, developer, await developer.game())


async def test_each_port_is_reached_only_at_its_player_address(domain: Domain, game: Game) -> None:
    await game.deploy()
    placement = await game.find_lobby()
    lobby_id, ports = placement["lobby"]["lobby_id"], placement["ports"]
    for name, number, is_tls in (("web", 80, False), ("page", 443, True)):
        port = ports[name]
        assert port["hostname"] == f"{lobby_id}-{name}.lobby.local.{JOB}"
        assert (port["port"], port["is_tls"]) == (number, is_tls)
        assert port["host"] == f"{port['hostname']}:{number}"
        async with browser_at(domain, "127.0.0.7") as player:
            scheme = "https" if is_tls else "http"
            forged = {"x-forwarded-for": "203.0.113.9"}
            answer = await player.get(f"{scheme}://{port['hostname']}/room?a=1", headers=forged)
        body = answer.raise_for_status().json()
        assert (body["path"], body["host"]) == ("/room?a=1", port["hostname"])
        assert (body["x-forwarded-for"], body["x-forwarded-proto"]) == ("127.0.0.7", scheme)
        async with web_socket(domain, port) as connection:
            assert await talks(connection, "hello")
    for name in ("raw", "sealed", "quick"):
        port = ports[name]
        assert port["hostname"] == f"local.{JOB}"
        assert 26_000 <= port["port"] < 32_000
        assert port["is_tls"] is (name == "sealed")
        if name == "quick":
            assert await asyncio.to_thread(echoed_datagram, port) == b"hello"
        else:
            assert await asyncio.to_thread(echo_at, domain, port) == b"hello"


async def test_ended_lobby_has_no_host_name(domain: Domain, game: Game) -> None:
    await game.deploy()
    placement = await game.find_lobby()
    url = f"https://{placement['ports']['page']['hostname']}/"
    async with browser_at(domain, DEVELOPER) as player:
        assert (await player.get(url)).status_code == 200
        await game.developer.good(
            "detach", game_id=game.game_id, lobby_id=placement["lobby"]["lobby_id"]
        )

        async def is_unknown() -> bool:
            return (await player.get(url)).status_code == 404

        await eventually(is_unknown)


async def test_site_is_served_at_its_own_host_name(domain: Domain, game: Game) -> None:
    page = b"<h1>The domain's own</h1>"
    await game.deploy(page)
    record = await game.developer.good("get_game", game_id=game.game_id)
    name_id = record["game"]["name_id"]
    async with browser_at(domain, DEVELOPER) as browser:

        async def is_new_page_served() -> bool:
            answer = await browser.get(f"https://{name_id}.{CDN}/")
            return answer.status_code == 200 and answer.content == page

        await eventually(is_new_page_served)
        beside = await browser.get(f"https://{name_id}--prod.{CDN}/")
        assert beside.content == page
        assert (await browser.get(f"https://nobody.{CDN}/")).status_code == 404


async def test_dynamic_server_is_reached_at_its_recorded_names(domain: Domain, game: Game) -> None:
    archive = game_programs.server_archive("python3", "web.py", **{"web.py": WEB})
    token = await game.developer.service_token(game.game_id)
    response = await GameBackEnd(game.developer, game.game_id, token).good(
        "create_server",
        datacenter="local",
        network={"ports": {"page": {"protocol": "https"}, "raw": {"protocol": "tcp"}}},
        resources={"cpu": 100, "memory": 128},
        runtime={"build": await game.build(archive)},
        tags={},
    )
    ports = response["server"]["network"]["ports"]
    name = f"{response['server']['id']}-page.server.local.{JOB}"
    assert (ports["page"]["public_hostname"], ports["page"]["public_port"]) == (name, 443)
    assert ports["raw"]["public_hostname"] == f"local.{JOB}"

    raw = {"port": ports["raw"]["public_port"], "is_tls": False}
    async with browser_at(domain, DEVELOPER) as player:

        async def is_served() -> bool:
            return (await player.get(f"https://{name}/")).status_code == 200

        async def is_reachable() -> bool:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(echo_at, domain, raw) == b"hello"
            return False

        # The server never reports ready. It is ready when it listens.
        await eventually(is_served)
        await eventually(is_reachable)


async def test_rate_limit_counts_the_client_address(domain: Domain) -> None:
    async with at_api(domain, "127.0.0.20") as busy, at_api(domain, "127.0.0.21") as other:
        codes = [(await busy.call("prepare_device_link", {})).code for _ in range(LINKS + 1)]
        assert codes == ["OK"] * LINKS + ["RATE_LIMITED"]
        assert (await other.call("prepare_device_link", {})).code == "OK"
    async with at_api(domain, "127.0.0.20") as again:
        lied = {"x-forwarded-for": "198.51.100.1"}
        answer = await again.request("POST", "/cloud/devices/links", b"{}", headers=lied)
        assert answer.status_code == 429, "a header does not change the address"


@pytest.mark.fast
async def test_links_use_the_public_domains(domain: Domain, game: Game) -> None:
    async with at_api(domain, "127.0.0.22") as client:
        link = await client.call("prepare_device_link", {})
        assert link.body["device_link_url"].startswith(f"https://{API}/link#")
        bootstrap = (await client.call("bootstrap")).body
        assert bootstrap["domains"] == {"main": API, "cdn": CDN, "job": JOB}
        assert bootstrap["origins"]["hub"] == f"https://{API}"
        document = (await client.request("GET", "/openapi.json")).json()
        assert document["servers"] == [{"url": f"https://{API}"}]
    summaries = await game.developer.good("get_games")
    [record] = [one for one in summaries["games"] if one["game_id"] == game.game_id]
    assert all(
        group["external"]["profile"] == f"https://{API}/groups/{group['group_id']}"
        for group in summaries["groups"]
    )
    assert record["url"] == f"https://{record['name_id']}.{CDN}"
    token = await game.developer.service_token(game.game_id)
    back_end = GameBackEnd(game.developer, game.game_id, token)
    upload = (await back_end.prepare(b"archive"))["image_presigned_request"]
    assert upload["url"].startswith(f"https://{FILES}/")


async def test_client_behind_a_front_proxy_counts_by_its_own_address(domain: Domain) -> None:
    # All requests use one connection, as from a proxy in front.
    async with at_api(domain, PROXY) as proxy:

        async def status_for(client: str) -> int:
            headers = {"x-forwarded-for": client}
            path = "/cloud/devices/links"
            return (await proxy.request("POST", path, b"{}", headers=headers)).status_code

        codes = [await status_for("203.0.113.5") for _ in range(LINKS + 1)]
        assert codes == [200] * LINKS + [429]
        assert await status_for("203.0.113.6") == 200
        assert await status_for("203.0.113.5, 203.0.113.7") == 200
        assert await status_for("203.0.113.7, 203.0.113.5") == 429, (
            "only the last address is trusted"
        )


async def test_player_limit_counts_the_client_address(domain: Domain, game: Game) -> None:
    await game.deploy()
    namespace_fields = {"game_id": game.game_id, "namespace_id": "prod"}
    await game.developer.good("set_mm_config", **namespace_fields, lobby_count_max=4, max_players=2)
    token = await game.developer.public_token(game.game_id)
    async with (
        at_api(domain, "127.0.0.30") as near_client,
        at_api(domain, "127.0.0.31") as other_client,
    ):
        fields = {"game_modes": ["duel"]}
        codes = [(await near_client.call("find", fields, token=token)).code for _ in range(3)]
        assert codes == ["OK", "OK", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"]
        assert (await other_client.call("find", fields, token=token)).code == "OK"


async def test_game_server_receives_the_player_address(
    domain: Domain, developer: Developer
) -> None:
    async with third_party_server() as games:
        ask = {"enabled": True, "verification": {"url": games.url(), "headers": {}}}
        mode = {**ARENA_MODES["arena"], "actions": {"find": ask}}
        config = {"matchmaker": {"game_modes": {"arena": mode}}}
        game_id = await developer.game()
        version_id = await developer.version(game_id, config)
        await developer.good(
            "set_version", game_id=game_id, namespace_id="prod", version_id=version_id
        )
        token = await developer.public_token(game_id)
        await developer.lobby(game_id, await developer.service_token(game_id))
        async with at_api(domain, "127.0.0.40") as player:
            answer = await player.call("find", {"game_modes": ["arena"]}, token=token)
        assert answer.code == "OK", answer
        [request] = games.requests
        assert json.loads(request.body)["client"]["address"] == "127.0.0.40"


async def test_unknown_host_names_return_404(domain: Domain) -> None:
    async with browser_at(domain, DEVELOPER) as client:
        assert (await client.get(f"https://nobody-web.lobby.local.{JOB}/")).status_code == 404
        assert (await client.get("http://elsewhere.example/")).status_code == 404
        # No certificate covers this name, so the TLS handshake fails.
        with pytest.raises(httpx.ConnectError):
            await client.get("https://elsewhere.example/")


async def test_sighup_loads_a_new_certificate_without_disconnects(
    domain: Domain, game: Game
) -> None:
    await game.deploy()
    ports = (await game.find_lobby())["ports"]
    async with web_socket(domain, ports["page"]) as player:
        assert await talks(player, "before")
        before = await asyncio.to_thread(served_certificate, domain)
        domain.make_certificate()
        assert await asyncio.to_thread(served_certificate, domain) == before, (
            "no reload was requested"
        )
        assert domain.process is not None
        domain.process.send_signal(signal.SIGHUP)

        async def is_new() -> bool:
            return await asyncio.to_thread(served_certificate, domain) != before

        await eventually(is_new)
        assert await talks(player, "after")
        assert await asyncio.to_thread(echo_at, domain, ports["sealed"]) == b"hello"


@pytest.mark.fast
def test_edge_guard_configuration_has_the_domain_hosts(domain: Domain) -> None:
    config = json.loads((domain.data_dir / "edge" / "config.json").read_text())
    hosts = [backend["hosts"] for backend in config["backends"]]
    assert hosts == [[API], [CDN, f"*.{CDN}", FILES]]
