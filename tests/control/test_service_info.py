"""Bootstrap, tiers and datacenters: answers from the settings."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.service_info import bootstrap
from pyservice.settings import Settings
from pyservice.settings.sections import CaptchaSettings, Domains, EdgeSettings
from tests.control.response_shapes import FLAG, NUMBER, TEXT, shape
from tests.support.full_service import (
    Developer,
    FullService,
    HttpClient,
    ServiceClient,
    eventually,
    running,
)

pytestmark = pytest.mark.anyio

BASIC = {
    "bandwidth": 2_000_000,
    "cpu": 3_000,
    "disk": 8_192,
    "memory": 2_048,
    "service_cores_numerator": 1,
    "service_cores_denominator": 1,
}
TIER = {"tier_name_id": TEXT, **dict.fromkeys(BASIC, NUMBER)}


async def test_bootstrap_needs_no_token_and_has_the_contract_shape(
    full_service: FullService, client: ServiceClient
) -> None:
    answer = await client.call("bootstrap")
    assert answer.code == "OK"
    assert shape(answer.body) == {
        "access": TEXT,
        "captcha": {},
        "cluster": TEXT,
        "domains": {"cdn": TEXT, "job": TEXT, "main": TEXT},
        "login_methods": {"access_token": FLAG, "email": FLAG},
        "origins": {"api": TEXT, "hub": TEXT},
    }
    assert (answer.body["access"], answer.body["cluster"]) == ("development", "oss")
    assert answer.body["login_methods"] == {"access_token": True, "email": False}
    assert answer.body["domains"]["cdn"] == full_service.ready["cdn"]


async def test_bootstrap_is_readable_from_any_origin(owner: Developer) -> None:
    assert isinstance(owner.client, HttpClient)
    headers = {"origin": "https://somebody.example"}
    answer = await owner.client.request("GET", "/cloud/bootstrap", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"


LINKS = PublicUrls(
    "http://127.0.0.1:1", "sites.example", "http://127.0.0.1:2", "https://hub.example", str
)


def test_domains_replace_addresses() -> None:
    names = {"main": "games", "cdn": "sites", "job": "lobbies", "open_backend": "b"}
    domains = {name: f"{label}.example" for name, label in names.items()}
    settings = Settings(domains=Domains(**domains), access="private", cluster="enterprise")
    response = bootstrap(settings, LINKS)
    assert (response.access, response.cluster) == ("private", "enterprise")
    assert {name: getattr(response.domains, name) for name in names} == domains
    assert response.origins.hub == "https://hub.example"


def test_players_address_of_edge_guard_stands_for_the_job_domain() -> None:
    settings = Settings(edge=EdgeSettings(address="192.168.1.5"))
    assert bootstrap(settings, LINKS).domains.job == "192.168.1.5"


def test_service_captcha_key_is_returned_where_set() -> None:
    without = bootstrap(Settings(), LINKS)
    assert without.HasField("captcha")
    assert not without.captcha.HasField("captcha_b")
    captcha = CaptchaSettings(captcha_b_site_key="0x4AAAAAAA")
    response = bootstrap(Settings(captcha=captcha), LINKS)
    assert response.captcha.captcha_b.site_key == "0x4AAAAAAA"
    with pytest.raises(ValueError, match="captcha_b_site_key"):
        CaptchaSettings(captcha_b_site_key="")


async def test_tiers_need_no_token_and_are_largest_first(client: ServiceClient) -> None:
    answer = await client.call("region_tiers")
    assert shape(answer.body) == {"tiers": [TIER]}
    names = [one["tier_name_id"] for one in answer.body["tiers"]]
    assert names == [
        *("basic-4d1", "basic-2d1", "basic-1d1"),
        *("basic-1d2", "basic-1d4", "basic-1d8", "basic-1d16"),
    ]
    assert {"tier_name_id": "basic-1d1", **BASIC} in answer.body["tiers"]


async def test_datacenters_are_the_regions(developer: Developer) -> None:
    game_id = await developer.arena()
    env = await developer.service_token(game_id)
    fields = {"game_id": game_id, "environment_id": "prod"}
    expected = {"datacenters": [{"id": "local", "slug": "local", "name": "Local"}]}
    assert await developer.good("datacenters", **fields) == expected
    answer = await developer.client.call("datacenters", fields, token=env)
    assert (answer.code, answer.body) == ("OK", expected)
    fields["environment_id"] = "staging"
    sibling = await developer.client.call("datacenters", fields, token=env)
    assert sibling.code == "NAMESPACE_NOT_FOUND"


SMALL = (
    "[[tiers]]\n"
    'tier_name_id = "small"\nbandwidth = 1\ncpu = 1\ndisk = 1\nmemory = 1\n'
    "service_cores_numerator = 1\nservice_cores_denominator = 8\n"
)
LARGE = SMALL.replace("small", "large").replace("denominator = 8", "denominator = 2")


@pytest.mark.full
async def test_settings_are_returned_and_sighup_reloads_tiers(tmp_path: Path) -> None:
    service, path = FullService(tmp_path / "s"), tmp_path / "settings.toml"
    path.write_text(SMALL)
    words = ("--config", str(path), "--set", "captcha.captcha_b_site_key=a-key")
    with running(service, *words):
        async with service.open_client("http") as http, service.open_client("grpc") as grpc:
            for client in (http, grpc):
                answer = await client.call("bootstrap")
                assert answer.body["captcha"] == {"captcha_b": {"site_key": "a-key"}}

            async def names() -> list[str]:
                tiers = (await http.call("region_tiers")).body["tiers"]
                return [one["tier_name_id"] for one in tiers]

            assert await names() == ["small"]
            path.write_text(SMALL + LARGE)
            assert service.process is not None
            service.process.send_signal(signal.SIGHUP)

            async def is_read() -> bool:
                return await names() == ["large", "small"]

            await eventually(is_read)
