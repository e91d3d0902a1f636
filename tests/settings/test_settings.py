from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pyservice.settings import (
    ListenAddress,
    Problem,
    Settings,
    SettingsError,
    configuration_memory_warning,
    load,
)

FILES = "https://files.example.net"
FILES_OF_SITES = "https://files.cdn.example.com"
SITES_OF_EXAMPLE: dict[str, object] = {"domains": {"cdn": "example.com"}, "cdn_url": FILES}
SITES = {"cdn": "cdn.example.com"}
BUCKET: dict[str, object] = {"bucket": "b", "access_key_id": "k", "secret_access_key": "s"}


def _problems(
    flags: dict[str, object], environ: dict[str, str] | None = None, config_file: Path | None = None
) -> list[Problem]:
    with pytest.raises(SettingsError) as caught:
        load(flags, config_file, environ or {})
    return caught.value.problems


def _file(folder: Path, text: str) -> Path:
    path = folder / "service.toml"
    path.write_text(text)
    return path


def test_documented_defaults_apply() -> None:
    settings = load({}, environ={})
    assert str(settings.http) == "127.0.0.1:8080"
    assert str(settings.grpc) == "127.0.0.1:8081"
    assert str(settings.metrics) == "127.0.0.1:8090"
    assert settings.data_dir == Path("data")
    assert (settings.rate_limits.client.per_second, settings.rate_limits.client.burst) == (20, 100)
    assert settings.rate_limits.operator.per_second == 50
    assert settings.rate_limits.operator.burst == 200
    assert settings.find_wait_ms == 45_000
    assert settings.lame_duck_ms == 0


def test_flags_override_environment_and_environment_overrides_file(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        'http = "127.0.0.1:1"\ngrpc = "127.0.0.1:2"\nmetrics = "127.0.0.1:3"\n'
        "[rate_limits.client]\nper_second = 7\nburst = 8\n",
    )
    environ = {
        "PYSERVICE_HTTP": "127.0.0.1:11",
        "PYSERVICE_GRPC": "127.0.0.1:12",
        "PYSERVICE_RATE_LIMITS__CLIENT__BURST": "80",
    }
    settings = load({"http": "127.0.0.1:111", "grpc": None}, path, environ)
    assert settings.http.port == 111
    assert settings.grpc.port == 12
    assert settings.metrics.port == 3
    assert (settings.rate_limits.client.per_second, settings.rate_limits.client.burst) == (7, 80)


def test_environment_may_name_the_file(tmp_path: Path) -> None:
    path = _file(tmp_path, "lame_duck_ms = 5\n")
    assert load({}, environ={"PYSERVICE_CONFIG": str(path)}).lame_duck_ms == 5


def test_environment_lists_are_json_or_words() -> None:
    settings = load(
        {},
        environ={
            "PYSERVICE_TRUSTED_PROXIES": "10.0.0.0/8, ::1",
            "PYSERVICE_CORS_ORIGINS": '["https://console.example.com"]',
            "PYSERVICE_REGIONS": '[{"name_id": "eu", "region_display_name": "Europe"}]',
        },
    )
    assert [str(network) for network in settings.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert settings.cors_origins == ("https://console.example.com",)
    assert [region.name_id for region in settings.regions] == ["eu"]


def test_all_problems_are_reported_with_their_source(tmp_path: Path) -> None:
    path = _file(tmp_path, 'lame_duck_ms = -1\nnonsense = 1\n[journal]\nwrong = "x"\n')
    environ = {
        "PYSERVICE_NONSENSE_TOO": "1",
        "PYSERVICE_TRUSTED_PROXIES": "10.0.0.1/8",
        "PYSERVICE_FIND_WAIT_MS": "soon",
    }
    problems = _problems({"http": "nowhere"}, environ, path)
    assert {(problem.name, problem.source) for problem in problems} == {
        ("http", "flag"),
        ("PYSERVICE_NONSENSE_TOO", "environment"),
        ("trusted_proxies.0", "environment"),
        ("find_wait_ms", "environment"),
        ("lame_duck_ms", f"file {path}"),
        ("nonsense", f"file {path}"),
        ("journal.wrong", f"file {path}"),
    }


@pytest.mark.parametrize(
    "text", ["8080", "host", "host:", ":80", "host:65536", "::1:80", "[::1", "a b:1", "[x]:1"]
)
def test_invalid_address_is_rejected(text: str) -> None:
    assert [problem.name for problem in _problems({"http": text})] == ["http"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("localhost:80", ListenAddress("localhost", 80)),
        ("[::1]:65535", ListenAddress("::1", 65535)),
    ],
)
def test_address_round_trips(text: str, address: ListenAddress) -> None:
    assert load({"http": text}, environ={}).http == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"regions": []}, "regions"),
        ({"regions": [{"name_id": "A", "region_display_name": "A"}]}, "regions.0.name_id"),
        ({"regions": [{"name_id": "a"}]}, "regions.0.region_display_name"),
        (
            {"regions": [{"name_id": "a", "region_display_name": "A", "latitude": 91}]},
            "regions.0.latitude",
        ),
        ({"journal": {"segment_bytes": (1 << 20) + 1}}, "journal.segment_bytes"),
        ({"journal": {"boot_id_path": "/nowhere"}}, "journal.boot_id_path"),
        ({"data_dir": "x" * 97}, "data_dir"),
        ({"data_dir": "x" * 86, "cdn_url": "http://files.example.com"}, "data_dir"),
        ({"grpc": "127.0.0.1:8080"}, "grpc"),
        ({"metrics": "0.0.0.0:8080"}, "metrics"),
        ({"http": "[::]:8081"}, "grpc"),
        ({"regions": [{"name_id": "a" * 33, "region_display_name": "A"}]}, "regions.0.name_id"),
        ({"cors_origins": ["https://example.com/path"]}, "cors_origins.0"),
        ({"player_limit_max": 65_536}, "player_limit_max"),
        ({"rate_limits": {"client": {"burst": 0}}}, "rate_limits.client.burst"),
    ],
)
def test_values_out_of_range_are_rejected(flags: dict[str, object], name: str) -> None:
    assert [problem.name for problem in _problems(flags)] == [name]


def _accepted(flags: dict[str, object]) -> Settings:
    settings = load(flags, environ={})
    assert settings.model_fields_set == flags.keys()
    return settings


@pytest.mark.parametrize(
    "flags",
    [
        {"data_dir": "x" * 89, "http": "127.0.0.2:8081", "metrics": "127.0.0.1:0"},
        {"data_dir": "x" * 85, "cdn_url": "http://files.example.com"},
    ],
)
def test_values_at_their_limits_are_accepted(flags: dict[str, object]) -> None:
    assert _accepted(flags).data_dir == Path(str(flags["data_dir"]))


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"public_url": "https://api.example.com"}, "public_url"),
        ({"public_url": "https://EXAMPLE.com.:8443/api"}, "public_url"),
        ({"hub_url": "https://hub.example.com/x"}, "hub_url"),
        ({"domains": {"main": "api.example.com", "cdn": "example.com"}}, "domains.main"),
        # Without a setting, the listener's address is the public URL.
        ({"http": "api.example.com:80"}, "public_url"),
    ],
)
def test_api_host_is_outside_of_the_site_domain(flags: dict[str, object], name: str) -> None:
    [problem] = _problems({**SITES_OF_EXAMPLE, **flags})
    assert problem.name == name
    assert "give it a host outside that domain" in problem.message


@pytest.mark.parametrize(
    "flags",
    [
        {"public_url": "https://one.example", "cdn_url": "https://one.example"},
        {"hub_url": "https://one.example/hub", "cdn_url": "https://ONE.example:443/sites"},
        {"public_url": "http://[::1]:80", "cdn_url": "http://[::1]"},
        {"domains": {"main": "one.example"}, "cdn_url": "https://one.example"},
        {"cdn_url": "http://127.0.0.1:8080"},
        {"http": "0.0.0.0:80", "cdn_url": "http://127.0.0.1/sites"},
        {"public_url": "http://127.0.0.1:8092"},
        {"public_url": "https://b.example", "s3": {**BUCKET, "endpoint": "https://b.example"}},
    ],
)
def test_sites_never_share_an_origin_with_the_api_or_user_pages(flags: dict[str, object]) -> None:
    [problem] = _problems(flags)
    name, store = ("s3.endpoint", "bucket") if "s3" in flags else ("cdn_url", "CDN")
    assert problem.name == name
    assert f"give the {store} another host or port" in problem.message


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"cdn_url": FILES_OF_SITES}, "cdn_url"),
        ({"cdn_url": "https://FILES.cdn.example.com.:8443/x"}, "cdn_url"),
        ({"cdn_url": "https://a.files.cdn.example.com"}, "cdn_url"),
        ({"cdn_url": "https://cdn.example.com"}, "cdn_url"),
        ({"cdn": "Files.cdn.example.com:80"}, "cdn_url"),
        ({"s3": {**BUCKET, "public_endpoint": FILES_OF_SITES}}, "s3.public_endpoint"),
        ({"s3": {**BUCKET, "endpoint": FILES_OF_SITES}}, "s3.endpoint"),
    ],
)
def test_game_cannot_have_the_name_of_the_file_host(flags: dict[str, object], name: str) -> None:
    settings = {"cdn": "192.0.2.1:80", **flags} if "s3" in flags else flags
    [problem] = _problems({**settings, "domains": SITES})
    assert problem.name == name
    assert "a game of that name would share its origin" in problem.message
    assert "a separate host outside that domain" in problem.message
    assert "such as files.example.com beside cdn.example.com" in problem.message


@pytest.mark.parametrize(
    "flags",
    [
        {"public_url": "https://one.example", "cdn_url": "https://one.example:8443"},
        {"public_url": "https://one.example", "cdn_url": "http://one.example"},
        {"public_url": "https://one.example", "hub_url": "https://one.example"},
        {"public_url": "https://api.example.com", "cdn_url": FILES, "domains": SITES},
        {"hub_url": "https://notexample.com", **SITES_OF_EXAMPLE},
        {"cdn_url": "https://files-cdn.example", "domains": {"cdn": "cdn.example"}},
        {"domains": {"main": "example.com", "cdn": "cdn.example.com"}, "cdn_url": FILES},
        # Only the service uses this URL, so browsers have no origin for it.
        {
            "s3": {**BUCKET, "endpoint": "http://s3.example.com", "public_endpoint": FILES},
            **SITES_OF_EXAMPLE,
        },
        {"cdn": "127.0.0.1:8092"},
        {"cdn": "0.0.0.0:8092"},
        {
            "domains": {"main": "example.com", "job": "job.example.com"},
            "edge": {"is_fronted": True},
        },
        # Clients can reach the listener's address.
        {"cdn": "192.0.2.1:80", "domains": SITES},
        {"cdn": "[2001:db8::1]:80", "domains": SITES},
        {"cdn": "files.example.com:80", "domains": SITES},
        # The sites are on this machine only, too.
        {"cdn": "127.0.0.1:8092", "domains": {"cdn": "localhost"}},
        {"cdn": "127.0.0.1:8092", "domains": {"cdn": "sites.localhost"}},
        {"cdn_url": "https://files.example.com/x", "domains": SITES},
    ],
)
def test_separate_reachable_origins_are_accepted(flags: dict[str, object]) -> None:
    _accepted(flags)


@pytest.mark.parametrize(
    "cdn", ["127.0.0.1:8092", "[::1]:0", "0.0.0.0:80", "[::]:80", "localhost:1"]
)
def test_default_cdn_url_with_a_site_domain_is_rejected(cdn: str) -> None:
    """Clients that upload files are on other machines."""
    [problem] = _problems({"cdn": cdn, "domains": SITES})
    assert (problem.name, problem.source) == ("cdn_url", "default")
    assert "domains.cdn" in problem.message
    assert "only this machine reaches" in problem.message
    assert "such as files.example.com beside cdn.example.com" in problem.message


def test_invalid_cdn_address_causes_no_second_problem() -> None:
    problems = _problems({"cdn": "nowhere", "domains": SITES})
    assert [problem.name for problem in problems] == ["cdn"]


@pytest.mark.parametrize("name", ["public_url", "cdn_url", "hub_url"])
@pytest.mark.parametrize(
    "url", ["https://one.example?x=1", "https://one.example/a?", "https://x/?"]
)
def test_url_prefix_has_no_query(name: str, url: str) -> None:
    [problem] = _problems({name: url})
    assert problem.name == name
    assert "paths are appended to it" in problem.message


def test_invalid_setting_neither_hides_nor_causes_a_conflict() -> None:
    flags: dict[str, object] = {
        "http": "nowhere",
        "grpc": "127.0.0.1:8080",
        "metrics": "127.0.0.1:8080",
    }
    assert [(problem.name, problem.source) for problem in _problems(flags)] == [
        ("http", "flag"),
        ("metrics", "flag"),
    ]


def test_usable_part_of_invalid_settings_is_returned() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"lame_duck_ms": "x", "nonsense": 1, "feed_file": "feed.json"}, environ={})
    usable = caught.value.usable
    assert usable is not None
    assert (usable.feed_file, usable.lame_duck_ms) == (Path("feed.json"), 0)


def test_captcha_and_verification_networks_are_read() -> None:
    settings = load(
        {},
        environ={
            "PYSERVICE_CAPTCHA__CAPTCHA_B_URL": "https://captcha.example.com/verify?x=1",
            "PYSERVICE_VERIFICATION_ALLOWED_NETWORKS": "127.0.0.0/8, fd00::/8",
        },
    )
    assert settings.captcha.endpoints == {"captcha_b": "https://captcha.example.com/verify?x=1"}
    networks = [str(network) for network in settings.verification_allowed_networks]
    assert networks == ["127.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize(
    "url", ["", "captcha.example.com", "ftp://a/", "http://u@a/", "http://a b/"]
)
def test_invalid_provider_url_is_rejected(url: str) -> None:
    [problem] = _problems({"captcha": {"captcha_a_url": url}})
    assert problem.name == "captcha.captcha_a_url"


def test_region_is_listed_once() -> None:
    region = {"name_id": "a", "region_display_name": "A"}
    [problem] = _problems({"regions": [region, region]})
    assert "more than once" in problem.message


def test_missing_or_invalid_toml_file_is_a_problem(tmp_path: Path) -> None:
    [missing] = _problems({}, config_file=tmp_path / "none.toml")
    assert "cannot be read" in missing.message
    [broken] = _problems({}, config_file=_file(tmp_path, "= 1"))
    assert "is not TOML" in broken.message


def test_relative_paths_count_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = _file(tmp_path, 'data_dir = "d"\n[tls]\ncert = "api.pem"\nkey = "api.key"\n')
    for name in ("api.pem", "api.key"):
        (tmp_path / name).touch()
    assert [problem.name for problem in _problems({}, config_file=path)] == ["tls.cert", "tls.key"]
    for name in ("api.pem", "api.key"):
        (tmp_path / name).rename(here / name)
    assert load({}, path, {}).data_dir.absolute() == here / "d"


def test_settings_are_frozen() -> None:
    settings = load({}, environ={})
    with pytest.raises(ValidationError):
        settings.lame_duck_ms = 1


def test_client_variables_are_not_settings() -> None:
    environ = {"PYSERVICE_URL": "http://127.0.0.1:1", "PYSERVICE_TOKEN": "x"}
    assert load({}, environ=environ) == Settings()


@pytest.mark.parametrize(
    "text", ["20000", "20000-", "25999-20000", "80-25999", "20000-65536", "a-b"]
)
def test_port_range_is_two_ascending_ports(text: str) -> None:
    [problem] = _problems({"runtime": {"host_ports": text}})
    assert problem.name == "runtime.host_ports"
    assert "must be two ports from 1024 to 65535, such as 20000-25999" in problem.message


def test_port_belongs_to_one_range() -> None:
    environ = {"PYSERVICE_RUNTIME__HOST_PORTS": "30000-40000"}
    settings = load({"runtime": {"process_ports": "1024-1024"}}, environ={})
    assert (settings.runtime.process_ports.numbers, str(settings.runtime.host_ports)) == (
        range(1_024, 1_025),
        "20000-25999",
    )
    problems = _problems({"runtime": {"process_ports": "31000-31999"}}, environ)
    public = "in common with edge.public_ports"
    assert [(one.name, one.source, one.message) for one in problems] == [
        ("runtime.process_ports", "flag", f"has 31000-31999 {public}"),
        ("runtime.host_ports", "environment", f"has 30000-31999 {public}"),
        (
            "runtime.host_ports",
            "environment",
            "has 31000-31999 in common with runtime.process_ports",
        ),
    ]


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [
        ({}, False),
        ({"quotas": {"groups": 5}}, True),
        ({"quotas": {"configuration_bytes": 128 << 20}}, True),
        ({"quotas": {"groups": 5}, "data_plane_configuration_bytes": 1 << 30}, False),
        ({"data_plane_configuration_bytes": 256 << 20}, True),
    ],
)
def test_identity_that_can_fill_the_memory_is_a_warning(
    changes: dict[str, Any], is_warned: bool
) -> None:
    warning = configuration_memory_warning(load(changes, environ={}))
    assert (warning is not None) == is_warned
    assert "data_plane_configuration_bytes" in (warning or "data_plane_configuration_bytes")


def test_front_off_refuses_settings_that_only_the_front_applies() -> None:
    assert load({}, environ={}).front == "on"
    assert load({"front": "off"}, environ={}).front == "off"
    flags = {"front": "off", "proxy_protocol": True, "domains": {"main": "play.example.com"}}
    with pytest.raises(SettingsError) as refused:
        load(flags, environ={})
    messages = [problem.message for problem in refused.value.problems if problem.name == "front"]
    assert [message.split(":")[0] for message in messages] == [
        "off cannot serve domains.main",
        "off cannot read PROXY headers",
    ]


def test_control_plane_address_is_compared_without_the_front() -> None:
    flags = {"control_http": "127.0.0.1:8080"}
    load(flags, environ={})
    with pytest.raises(SettingsError, match=r"control_http: .* is also the address of http"):
        load({**flags, "front": "off"}, environ={})
