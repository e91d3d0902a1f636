from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.app import control_plane
from pyservice.control.resource_summaries import PublicUrls
from pyservice.settings import Settings
from pyservice.settings.sections import CaptchaSettings, Domains
from tests.control.response_shapes import FLAG, NUMBER, TEXT, shape
from tests.support.full_service import Developer, Door, FullService, HttpDoor, eventually
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

TIER = {
    "tier_name_id": TEXT,
    "bandwidth": NUMBER,
    "cpu": NUMBER,
    "disk": NUMBER,
    "memory": NUMBER,
    "service_cores_numerator": NUMBER,
    "service_cores_denominator": NUMBER,
}


async def test_bootstrap_needs_no_token_and_has_the_contract_shape(
    full_service: FullService, client: Door
) -> None:
    answer = await client.call("bootstrap")
    assert answer.code == "OK"
    assert shape(answer.body) == {
        "access": TEXT,
        "captcha": {},
        "cluster": TEXT,
        "domains": {"cdn": TEXT, "job": TEXT, "main": TEXT},
        "login_methods": {"access_token": FLAG, "email": FLAG},
        "origins": {"hub": TEXT},
    }
    assert (answer.body["access"], answer.body["cluster"]) == ("development", "oss")
    assert answer.body["login_methods"] == {"access_token": True, "email": False}
    assert answer.body["domains"]["cdn"] == full_service.said["cdn"]


async def test_bootstrap_is_readable_from_any_origin(full_service: FullService) -> None:
    client = full_service.door("http")
    assert isinstance(client, HttpDoor)
    answer = await client.request(
        "GET", "/cloud/bootstrap", headers={"origin": "https://somebody.example"}
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    await client.close()


def test_domains_replace_addresses() -> None:
    domains = Domains(
        main="games.example", cdn="sites.example", job="lobbies.example", open_backend="b.example"
    )
    settings = Settings(domains=domains, access="private", cluster="enterprise")
    links = PublicUrls(
        "http://127.0.0.1:1", "sites.example", "http://127.0.0.1:2", "https://hub.example", str
    )
    response = control_plane.bootstrap(settings, links)
    assert (response.access, response.cluster) == ("private", "enterprise")
    assert response.domains.main == "games.example"
    assert response.domains.cdn == "sites.example"
    assert response.domains.job == "lobbies.example"
    assert response.domains.open_backend == "b.example"
    assert response.origins.hub == "https://hub.example"


def test_service_captcha_key_is_returned_where_set() -> None:
    links = PublicUrls(
        "http://127.0.0.1:1", "sites.example", "http://127.0.0.1:2", "https://hub.example", str
    )
    without = control_plane.bootstrap(Settings(), links)
    assert without.HasField("captcha")
    assert not without.captcha.HasField("captcha_b")
    captcha = CaptchaSettings(captcha_b_site_key="0x4AAAAAAA")
    response = control_plane.bootstrap(Settings(captcha=captcha), links)
    assert response.captcha.captcha_b.site_key == "0x4AAAAAAA"


def test_empty_captcha_key_is_no_key() -> None:
    with pytest.raises(ValueError, match="captcha_b_site_key"):
        CaptchaSettings(captcha_b_site_key="")


async def test_captcha_key_is_returned_over_both_transports(tmp_path: Path) -> None:
    full_service = FullService(tmp_path / "s")
    try:
        full_service.start("--set", "captcha.captcha_b_site_key=a-key")
        for name in ("http", "grpc"):
            client = full_service.door(name)
            answer = await client.call("bootstrap")
            assert answer.body["captcha"] == {"captcha_b": {"site_key": "a-key"}}
            await client.close()
    finally:
        full_service.close()


async def test_tiers_need_no_token_and_are_largest_first(client: Door) -> None:
    answer = await client.call("region_tiers")
    assert shape(answer.body) == {"tiers": [TIER]}
    names = [one["tier_name_id"] for one in answer.body["tiers"]]
    assert names == [
        *("basic-4d1", "basic-2d1", "basic-1d1"),
        *("basic-1d2", "basic-1d4", "basic-1d8", "basic-1d16"),
    ]
    assert {
        "tier_name_id": "basic-1d1",
        "bandwidth": 2_000_000,
        "cpu": 3_000,
        "disk": 8_192,
        "memory": 2_048,
        "service_cores_numerator": 1,
        "service_cores_denominator": 1,
    } in answer.body["tiers"]


async def test_datacenters_are_the_regions(
    developer: Developer,
) -> None:
    game_id = await developer.arena()
    env = await developer.service_token(game_id)
    fields = {"game_id": game_id, "environment_id": "prod"}
    expected = {"datacenters": [{"id": "local", "slug": "local", "name": "Local"}]}
    assert await developer.good("datacenters", **fields) == expected
    answer = await developer.door.call("datacenters", fields, token=env)
    assert (answer.code, answer.body) == ("OK", expected)
    fields["environment_id"] = "staging"
    sibling = await developer.door.call("datacenters", fields, token=env)
    assert sibling.code == "NAMESPACE_NOT_FOUND"


SMALL = (
    "[[tiers]]\n"
    'tier_name_id = "small"\nbandwidth = 1\ncpu = 1\ndisk = 1\nmemory = 1\n'
    "service_cores_numerator = 1\nservice_cores_denominator = 8\n"
)
LARGE = SMALL.replace("small", "large").replace("denominator = 8", "denominator = 2")


@pytest.fixture
def reloading(tmp_path: Path) -> Iterator[FullService]:
    created = FullService(tmp_path / "s")
    (tmp_path / "settings.toml").write_text(SMALL)
    try:
        yield created.start("--config", str(tmp_path / "settings.toml"))
    finally:
        created.close()


async def test_sighup_reloads_and_sorts_tiers(reloading: FullService, tmp_path: Path) -> None:
    client = reloading.door("http")

    async def names() -> list[str]:
        return [one["tier_name_id"] for one in (await client.call("region_tiers")).body["tiers"]]

    assert await names() == ["small"]
    (tmp_path / "settings.toml").write_text(SMALL + LARGE)
    assert reloading.process is not None
    os.kill(reloading.process.pid, signal.SIGHUP)

    async def is_read() -> bool:
        return await names() == ["large", "small"]

    await eventually(is_read)
    await asyncio.wait_for(client.close(), PATIENCE_S)
