"""Validation rules for fed configurations."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.feed_validation import OperatorLimits, configuration_problems
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import JoinRules, raw_id, resolve_admission_rules
from tests.dataplane.configurations import OTHER_NAMESPACE_ID, VERSION_ID, configuration, version

LIMITS = OperatorLimits(player_limit_max=256, regions={"eu", "us"})
MODE = "versions.0.matchmaker.game_modes.duel"


def _problems(index: NamespaceIndex | None = None, **changes: Any) -> dict[str, str]:
    problems = configuration_problems(configuration(**changes), LIMITS, index or NamespaceIndex())
    return {".".join(problem.path): problem.reason for problem in problems}


def _of_mode(mode: dict[str, Any]) -> dict[str, str]:
    return _problems(versions=[version(duel=mode)])


def _token(text: str) -> dict[str, str]:
    digest = hashlib.sha256(text.encode()).digest()
    return {"token_id": VERSION_ID, "sha256": b64encode(digest).decode()}


def test_valid_configuration_has_no_problems() -> None:
    assert _problems() == {}
    assert _problems(access={"domains": ["play.example.com", "127.0.0.1", "::1"]}) == {}


def test_proto_and_own_problems_are_reported_together() -> None:
    problems = _problems(
        name_id="-prod",
        matchmaker={"lobby_count_max": 0, "max_players": 1},
        versions=[version(duel={"max_players": 257, "player_token_ttl": 4999})],
    )
    assert {
        "name_id",
        "matchmaker.lobby_count_max",
        f"{MODE}.max_players",
        f"{MODE}.player_token_ttl",
    } <= problems.keys()


@pytest.mark.parametrize("field", ["max_players", "max_players_direct", "max_players_party"])
def test_player_limits_of_the_operator(field: str) -> None:
    assert list(_of_mode({field: 257})) == [f"{MODE}.{field}"]
    assert _of_mode({field: 256}) == {}
    assert list(_problems(versions=[version(level={field: 257})])) == [
        f"versions.0.matchmaker.{field}"
    ]


def test_unknown_regions_are_refused() -> None:
    assert _of_mode({"regions": {"eu": {}}}) == {}
    assert list(_of_mode({"regions": {"eu": {}, "mars": {}}})) == [f"{MODE}.regions.mars"]


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a_b", "a" * 21, VERSION_ID])
def test_invalid_names_are_refused(name: str) -> None:
    assert "name_id" in _problems(name_id=name)


@pytest.mark.parametrize("text", ["", " a", "a ", "a  b", "a\nb", "a\x00b", "a" * 129])
def test_invalid_display_names_are_refused(text: str) -> None:
    assert "display_name" in _problems(display_name=text)


def test_display_names_accept_any_script() -> None:
    assert _problems(display_name="Производство №1 日本") == {}


def test_current_version_must_be_listed_once() -> None:
    assert list(_problems(current_version_id=OTHER_NAMESPACE_ID)) == ["current_version_id"]
    problems = _problems(versions=[version(duel={}), version(duel={})])
    assert list(problems) == ["versions.1.version_id"]


@pytest.mark.parametrize(
    ("port", "mode", "is_fine"),
    [
        ({}, "bridge", True),
        ({"protocol": "udp"}, "bridge", True),
        ({"protocol": "udp", "proxy": "edge-guard"}, "host", True),
        ({"port_range": {"min": 20000, "max": 20001}}, "host", False),
        (
            {"protocol": "udp", "proxy": "none", "port_range": {"min": 20000, "max": 25999}},
            "host",
            True,
        ),
        (
            {"protocol": "udp", "proxy": "none", "port_range": {"min": 20000, "max": 25999}},
            "bridge",
            False,
        ),
        ({"protocol": "udp", "proxy": "none"}, "host", False),
        ({"proxy": "none", "port_range": {"min": 20000, "max": 25999}}, "host", False),
        (
            {"protocol": "tcp", "proxy": "none", "port_range": {"min": 19999, "max": 20001}},
            "host",
            False,
        ),
        (
            {"protocol": "tcp", "proxy": "none", "port_range": {"min": 25999, "max": 26000}},
            "host",
            False,
        ),
    ],
)
def test_invalid_ports_are_refused(port: dict[str, Any], mode: str, is_fine: bool) -> None:
    problems = _of_mode({"docker": {"network_mode": mode, "ports": {"game": port}}})
    assert list(problems) == ([] if is_fine else [f"{MODE}.docker.ports.game"])


@pytest.mark.parametrize("name", ["PORT", "PORT_GAME", "HOSTING_LOBBY_ID"])
def test_reserved_environment_names_are_refused(name: str) -> None:
    assert list(_of_mode({"docker": {"env": {name: "x", "REPORT": "y"}}})) == [
        f"{MODE}.docker.env.{name}"
    ]


@pytest.mark.parametrize("domain", ["https://example.com", "example.com:80", "a b", "-a.com", "."])
def test_domains_must_be_hosts(domain: str) -> None:
    assert "access.domains.0" in _problems(access={"domains": [domain]})


def test_domain_belongs_to_one_namespace() -> None:
    index = NamespaceIndex()
    index.put(
        configuration(
            namespace_id=OTHER_NAMESPACE_ID,
            name_id="staging",
            access={"cdn_domains": ["Play.example.com"]},
        )
    )
    problems = _problems(index, access={"domains": ["mine.example.com", "play.example.com"]})
    assert problems == {"access.domains.1": "belongs to another namespace"}
    problems = _problems(index, access={"cdn_domains": ["play.example.com"]})
    assert problems == {"access.cdn_domains.0": "belongs to another namespace"}
    assert _problems(index, access={"domains": ["other.example.com"]}) == {}
    off = {"enable_domain_public_auth": False, "domains": ["play.example.com"]}
    assert _problems(index, access=off) == {}


def test_duplicate_domain_is_refused() -> None:
    problems = _problems(access={"domains": ["a.example"], "cdn_domains": ["A.example"]})
    assert list(problems) == ["access.cdn_domains.0"]


def test_name_belongs_to_one_namespace() -> None:
    index = NamespaceIndex()
    index.put(configuration(namespace_id=OTHER_NAMESPACE_ID))
    assert _problems(index) == {"name_id": "is the name of another namespace of the game"}


def test_conflicting_namespace_is_only_logged(capsys: pytest.CaptureFixture[str]) -> None:
    index = NamespaceIndex()
    secret = {
        "namespace_id": OTHER_NAMESPACE_ID,
        "name_id": "hidden",
        "access": {"domains": ["play.example.com"]},
        "environment_tokens": [_token("env_one")],
    }
    index.put(configuration(**secret))
    problems = _problems(
        index, access={"domains": ["play.example.com"]}, environment_tokens=[_token("env_one")]
    )
    assert set(problems) == {"access.domains.0", "environment_tokens.0.sha256"}
    assert "hidden" not in str(problems)
    assert OTHER_NAMESPACE_ID not in str(problems)
    assert "arena/hidden" in "".join(capsys.readouterr())


def test_namespace_does_not_conflict_with_itself() -> None:
    index = NamespaceIndex()
    same = {"access": {"domains": ["a.example"]}, "environment_tokens": [_token("env_one")]}
    index.put(configuration(**same))
    assert _problems(index, revision=2, **same) == {}


def test_environment_token_is_unique() -> None:
    tokens = [_token("env_one"), _token("env_one")]
    assert list(_problems(environment_tokens=tokens)) == ["environment_tokens.1.sha256"]
    index = NamespaceIndex()
    index.put(
        configuration(
            namespace_id=OTHER_NAMESPACE_ID,
            name_id="staging",
            environment_tokens=[_token("env_one")],
        )
    )
    problems = _problems(index, environment_tokens=[_token("env_one")])
    assert problems == {"environment_tokens.0.sha256": "belongs to another namespace"}


LATER_ID = "0192f000-0000-7000-8000-0000000000b2"
A = {"secret_key": "s", "site_key": "k"}
RULE: dict[str, Any] = {
    "captcha_a": A,
    "requests_before_reverify": 600,
    "verification_ttl": 43_200_000,
}
VERIFICATION = "versions.0.matchmaker.game_modes.duel.actions.join.verification"
CAPTCHA = "versions.0.matchmaker.captcha"


def _rule_problems(limits: OperatorLimits | None = None, **changes: Any) -> dict[str, str]:
    limits = limits or OperatorLimits(256, None, captcha_providers=("captcha_a",))
    problems = configuration_problems(configuration(**changes), limits, NamespaceIndex())
    return {".".join(problem.path): problem.reason for problem in problems}


def _of_captcha(captcha: dict[str, Any]) -> dict[str, str]:
    return _rule_problems(versions=[version(level={"captcha": captcha}, duel={})])


def _verified(url: str = "https://example.com/ask", **headers: str) -> dict[str, Any]:
    return {"enabled": True, "verification": {"url": url, "headers": headers}}


def _of_url(url: str, limits: OperatorLimits | None = None) -> dict[str, str]:
    return _rule_problems(limits, versions=[version(duel={"actions": {"join": _verified(url)}})])


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "http://example.com:8080/a/b?c=%20d",
        "https://EXAMPLE.com./",
        "https://xn--bcher-kva.example/",
        "https://a_b.example/",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]:444/",
    ],
)
def test_public_verification_urls_are_accepted(url: str) -> None:
    assert _of_url(url) == {}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://10.0.0.1:80/",
        "http://169.254.169.254/latest",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://localhost/",
        "http://LocalHost.:80/",
        "http://game.localhost/",
    ],
)
def test_private_verification_hosts_are_refused(url: str) -> None:
    problems = _of_url(url)
    assert list(problems) == [f"{VERIFICATION}.url"]
    assert "verification_allowed_networks" in problems[f"{VERIFICATION}.url"]


def test_verification_allowed_networks() -> None:
    networks = (ip_network("127.0.0.0/8"), ip_network("10.1.0.0/16"))
    limits = OperatorLimits(256, None, verification_allowed_networks=networks)
    for url in ("http://127.0.0.1:9/", "http://localhost/", "http://10.1.2.3/"):
        assert _of_url(url, limits) == {}
    assert list(_of_url("http://10.2.0.1/", limits)) == [f"{VERIFICATION}.url"]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "example.com",
        "https://",
        "https:///path",
        "http://user:pass@example.com/",
        "http://user@example.com/",
        "http://example.com/#part",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://exa mple.com/",
        "http://exam\nple.com/",
        "http://-a.example/",
        "http://a..example/",
        "http://bücher.example/",
        "http://2130706433/",
        "http://127.1/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1./",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://" + "a." * 130 + "example/",
    ],
)
def test_invalid_verification_urls_are_refused(url: str) -> None:
    assert f"{VERIFICATION}.url" in _of_url(url)


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Content-Type",
        "Transfer-Encoding",
        "Connection",
        "Proxy-Authorization",
        "traceparent",
        "Accept-Encoding",
        "",
        "a b",
        "a:b",
        "a\r\nb",
        "ü",
        "a" * 129,
    ],
)
def test_reserved_verification_headers_are_refused(name: str) -> None:
    problems = _rule_problems(
        versions=[version(duel={"actions": {"join": _verified(**{name: "x"})}})]
    )
    assert list(problems) == [f"{VERIFICATION}.headers.{name}"]


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\n", "\0", " a", "a ", "x" * 1025, "\u20ac"])
def test_invalid_header_values_are_refused(value: str) -> None:
    problems = _rule_problems(
        versions=[version(duel={"actions": {"join": _verified(**{"X-A": value})}})]
    )
    assert list(problems) == [f"{VERIFICATION}.headers.X-A"]


def test_duplicate_headers_are_refused() -> None:
    headers = {"Authorization": "Bearer x y", "X-Empty": "", "X-Name": "\xfc"}
    assert (
        _rule_problems(versions=[version(duel={"actions": {"find": _verified(**headers)}})]) == {}
    )
    problems = _rule_problems(
        versions=[version(duel={"actions": {"find": _verified(**{"X-A": "1", "x-a": "2"})}})]
    )
    assert list(problems.values()) == ["occurs more than once, in different case"]


@pytest.mark.parametrize("action", ["find", "join", "create"])
def test_every_action_of_every_version_is_validated(action: str) -> None:
    older = version(LATER_ID, duel={"actions": {action: _verified("http://127.0.0.1/")}})
    problems = _rule_problems(versions=[version(duel={}), older])
    path = f"versions.1.matchmaker.game_modes.duel.actions.{action}.verification.url"
    assert list(problems) == [path]


def test_configured_captcha_is_accepted() -> None:
    assert _of_captcha(RULE) == {}
    assert _of_captcha({}) == {}


def test_captcha_provider_without_endpoint_is_refused() -> None:
    problems = _of_captcha({**RULE, "captcha_b": A})
    assert problems == {
        f"{CAPTCHA}.captcha_b": (
            "cannot be used: the operator of this service has not set captcha.captcha_b_url"
        )
    }


def test_captcha_requires_reverify_settings() -> None:
    assert sorted(_of_captcha({"captcha_a": A})) == [
        f"{CAPTCHA}.requests_before_reverify",
        f"{CAPTCHA}.verification_ttl",
    ]
    assert sorted(_of_captcha({**RULE, "requests_before_reverify": 601})) == [
        f"{CAPTCHA}.requests_before_reverify"
    ]
    assert sorted(_of_captcha({**RULE, "verification_ttl": 43_200_001})) == [
        f"{CAPTCHA}.verification_ttl"
    ]
    assert sorted(_of_captcha({**RULE, "captcha_a": {"site_key": "k"}})) == [
        f"{CAPTCHA}.captcha_a.secret_key"
    ]


def test_development_tokens_are_validated() -> None:
    def problems(*tokens: dict[str, Any]) -> list[str]:
        return list(_rule_problems(development_tokens=tokens))

    good: dict[str, Any] = {"token_id": VERSION_ID, "expires_ms": "1", "hostname": "dev.example"}
    assert problems({**good, "ports": {"game": {"port": 1, "protocol": "udp"}}}) == []
    assert problems(good, good) == ["development_tokens.1.token_id"]
    for hostname in ("a:80", "http://a", "", "a b"):
        assert problems({**good, "hostname": hostname}) == ["development_tokens.0.hostname"]
    both = {"port": 1, "port_range": {"min": 1, "max": 2}, "protocol": "udp"}
    assert problems({**good, "ports": {"game": both}}) == [
        "development_tokens.0.ports.game.port_range"
    ]
    path = "development_tokens.0.ports.game.protocol"
    assert problems({**good, "ports": {"game": {"protocol": "quic"}}}) == [path]


def test_admission_rules_are_none_without_checks() -> None:
    assert resolve_admission_rules(configuration()) is None
    assert (
        resolve_admission_rules(configuration(versions=[version(level={"captcha": {}}, duel={})]))
        is None
    )
    enabled = {"find": {"enabled": True}, "join": {"enabled": False}}
    assert (
        resolve_admission_rules(configuration(versions=[version(duel={"actions": enabled})]))
        is None
    )


def test_admission_rules_by_version() -> None:
    old = version(VERSION_ID, level={"captcha": RULE}, duel={"actions": {"join": _verified()}})
    new = version(LATER_ID, duel={"actions": {"find": _verified()}}, tag={})
    gates = resolve_admission_rules(configuration(versions=[old, new], current_version_id=LATER_ID))
    assert gates is not None
    assert gates.captcha is None
    assert (list(gates.find), list(gates.create)) == (["duel"], [])
    of_old = gates.join(raw_id(VERSION_ID), "duel")
    assert of_old.captcha is not None
    assert of_old.verification is not None
    assert gates.join(raw_id(LATER_ID), "duel") == JoinRules(None, None)
    # An unknown version has the rules of the current one.
    assert gates.join(bytes(16), "duel") == JoinRules(None, None)
    assert gates.join(bytes(16), "gone") == JoinRules(None, None)
