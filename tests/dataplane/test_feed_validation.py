"""Validation rules for fed configurations."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.feed_validation import OperatorLimits, configuration_problems
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import JoinRules, raw_id
from tests.support.namespace_configurations import (
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
    resolved_namespace,
    version,
)

LIMITS = OperatorLimits(256, {"eu", "us"}, captcha_providers=("captcha_a",))
LATER_ID = "0192f000-0000-7000-8000-0000000000b2"
MATCHMAKER = "versions.0.matchmaker"
MODE = f"{MATCHMAKER}.game_modes.duel"
VERIFICATION = f"{MODE}.actions.join.verification"
A = {"secret_key": "s", "site_key": "k"}
RULE: dict[str, Any] = {
    "captcha_a": A,
    "requests_before_reverify": 600,
    "verification_ttl": 43_200_000,
}


def _problems(
    index: NamespaceIndex | None = None, limits: OperatorLimits = LIMITS, **changes: Any
) -> dict[str, str]:
    problems = configuration_problems(configuration(**changes), limits, index or NamespaceIndex())
    return {".".join(problem.path): problem.reason for problem in problems}


def _of_mode(mode: dict[str, Any], limits: OperatorLimits = LIMITS) -> dict[str, str]:
    return _problems(limits=limits, versions=[version(duel=mode)])


def _of_level(level: dict[str, Any]) -> dict[str, str]:
    return _problems(versions=[version(level=level, duel={})])


def _verified(url: str = "https://example.com/ask", **headers: Any) -> dict[str, Any]:
    return {"enabled": True, "verification": {"url": url, "headers": headers}}


def _of_verification(url: str, limits: OperatorLimits = LIMITS) -> dict[str, str]:
    return _of_mode({"actions": {"join": _verified(url)}}, limits)


def _token(text: str) -> dict[str, str]:
    digest = hashlib.sha256(text.encode()).digest()
    return {"token_id": VERSION_ID, "sha256": b64encode(digest).decode()}


def _neighbour(**changes: Any) -> NamespaceIndex:
    """Returns an index with another namespace."""
    index = NamespaceIndex()
    fields = {"namespace_id": OTHER_NAMESPACE_ID, "name_id": "hidden", **changes}
    index.put(configuration(**fields))
    return index


def test_valid_configuration_has_no_problems() -> None:
    assert _problems() == {}
    assert _problems(access={"domains": ["play.example.com", "127.0.0.1", "::1"]}) == {}
    assert _problems(display_name="Производство №1 日本") == {}
    assert _of_mode({"regions": {"eu": {}}}) == {}
    assert _of_level({"captcha": RULE}) == _of_level({"captcha": {}}) == {}


def test_proto_and_own_problems_are_reported_together() -> None:
    problems = _problems(
        name_id="-prod",
        matchmaker={"lobby_count_max": 0, "max_players": 1},
        versions=[version(duel={"max_players": 257, "player_token_ttl": 4999})],
    )
    expected = {"matchmaker.lobby_count_max", f"{MODE}.max_players", f"{MODE}.player_token_ttl"}
    assert {"name_id", *expected} <= problems.keys()


@pytest.mark.parametrize("field", ["max_players", "max_players_direct", "max_players_party"])
def test_player_limits_of_the_operator(field: str) -> None:
    assert _of_mode({field: 256}) == {}
    assert list(_of_mode({field: 257})) == [f"{MODE}.{field}"]
    assert list(_of_level({field: 257})) == [f"{MATCHMAKER}.{field}"]


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        *(
            ({"name_id": name}, "name_id")
            for name in ("", "-a", "a-", "a--b", "A", "a_b", "a" * 21, VERSION_ID)
        ),
        *(
            ({"display_name": text}, "display_name")
            for text in ("", " a", "a ", "a  b", "a\nb", "a\x00b", "a" * 129)
        ),
        *(
            ({"access": {"domains": [domain]}}, "access.domains.0")
            for domain in ("https://example.com", "example.com:80", "a b", "-a.com", ".")
        ),
        ({"current_version_id": OTHER_NAMESPACE_ID}, "current_version_id"),
        ({"versions": [version(duel={}), version(duel={})]}, "versions.1.version_id"),
        (
            {"access": {"domains": ["a.example"], "cdn_domains": ["A.example"]}},
            "access.cdn_domains.0",
        ),
        ({"environment_tokens": [_token("a"), _token("a")]}, "environment_tokens.1.sha256"),
        ({"versions": [version(duel={"regions": {"eu": {}, "mars": {}}})]}, f"{MODE}.regions.mars"),
        *(
            ({"versions": [version(duel={"docker": {"env": {name: "x", "REPORT": "y"}}})]}, path)
            for name in ("PORT", "PORT_GAME", "HOSTING_LOBBY_ID")
            for path in (f"{MODE}.docker.env.{name}",)
        ),
    ],
)
def test_invalid_values_are_refused(changes: dict[str, Any], path: str) -> None:
    assert set(_problems(**changes)) == {path}


def _range(first: int, last: int, **fields: str) -> dict[str, Any]:
    return {"port_range": {"min": first, "max": last}, **fields}


@pytest.mark.parametrize(
    ("port", "mode", "is_valid"),
    [
        ({}, "bridge", True),
        ({"protocol": "udp"}, "bridge", True),
        ({"protocol": "udp", "proxy": "edge-guard"}, "host", True),
        (_range(20_000, 20_001), "host", False),
        (_range(20_000, 25_999, protocol="udp", proxy="none"), "host", True),
        (_range(20_000, 25_999, protocol="udp", proxy="none"), "bridge", False),
        ({"protocol": "udp", "proxy": "none"}, "host", False),
        ({"protocol": "tcp_udp"}, "bridge", True),
        ({"protocol": "tcp_tls", "proxy_protocol": "v2"}, "bridge", True),
        ({"proxy_protocol": "v2"}, "bridge", False),
        (_range(20_000, 25_999, protocol="tcp_udp", proxy="none"), "host", True),
        (_range(20_000, 25_999, proxy="none"), "host", False),
        (_range(19_999, 20_001, protocol="tcp", proxy="none"), "host", False),
        (_range(25_999, 26_000, protocol="tcp", proxy="none"), "host", False),
    ],
)
def test_port_rules(port: dict[str, Any], mode: str, is_valid: bool) -> None:
    problems = _of_mode({"docker": {"network_mode": mode, "ports": {"game": port}}})
    assert list(problems) == ([] if is_valid else [f"{MODE}.docker.ports.game"])


def test_domain_belongs_to_one_namespace() -> None:
    index = _neighbour(access={"cdn_domains": ["Play.example.com"]})
    problems = _problems(index, access={"domains": ["mine.example.com", "play.example.com"]})
    assert problems == {"access.domains.1": "belongs to another namespace"}
    problems = _problems(index, access={"cdn_domains": ["play.example.com"]})
    assert problems == {"access.cdn_domains.0": "belongs to another namespace"}
    assert _problems(index, access={"domains": ["other.example.com"]}) == {}
    off = {"enable_domain_public_auth": False, "domains": ["play.example.com"]}
    assert _problems(index, access=off) == {}


def test_name_belongs_to_one_namespace() -> None:
    problems = _problems(_neighbour(name_id="prod"))
    assert problems == {"name_id": "is the name of another namespace of the game"}


def test_conflicting_namespace_is_only_logged(capsys: pytest.CaptureFixture[str]) -> None:
    claims: dict[str, Any] = {
        "access": {"domains": ["play.example.com"]},
        "environment_tokens": [_token("env_one")],
    }
    problems = _problems(_neighbour(**claims), **claims)
    belongs = "belongs to another namespace"
    assert problems == {"access.domains.0": belongs, "environment_tokens.0.sha256": belongs}
    assert "arena/hidden" in "".join(capsys.readouterr())
    # A namespace does not conflict with itself.
    index = NamespaceIndex()
    index.put(configuration(**claims))
    assert _problems(index, revision=2, **claims) == {}


PUBLIC_URLS = (
    "https://example.com http://example.com:8080/a/b?c=%20d https://EXAMPLE.com./ "
    "https://xn--bcher-kva.example/ https://a_b.example/ https://8.8.8.8/ "
    "https://[2606:4700::1111]:444/"
)
PRIVATE_URLS = (
    "http://127.0.0.1/ http://10.0.0.1:80/ http://169.254.169.254/latest http://[::1]/ "
    "http://[::ffff:127.0.0.1]/ http://[64:ff9b::7f00:1]/ http://[2002:7f00:1::]/ "
    "http://localhost/ http://LocalHost.:80/ http://game.localhost/"
)
INVALID_URLS = (
    "ftp://example.com/ example.com https:// https:///path http://user:pass@example.com/ "
    "http://user@example.com/ http://example.com/#part http://example.com:0/ "
    "http://example.com:65536/ http://-a.example/ http://a..example/ http://bücher.example/ "
    "http://2130706433/ http://127.1/ http://0x7f.0.0.1/ http://0177.0.0.1./ http://[::1/ "
    "http://[fe80::1%25eth0]/"
)


@pytest.mark.parametrize("url", PUBLIC_URLS.split())
def test_public_verification_urls_are_accepted(url: str) -> None:
    assert _of_verification(url) == {}


@pytest.mark.parametrize("url", PRIVATE_URLS.split())
def test_private_verification_hosts_are_refused(url: str) -> None:
    problems = _of_verification(url)
    assert list(problems) == [f"{VERIFICATION}.url"]
    assert "verification_allowed_networks" in problems[f"{VERIFICATION}.url"]


def test_verification_allowed_networks() -> None:
    networks = (ip_network("127.0.0.0/8"), ip_network("10.1.0.0/16"))
    limits = OperatorLimits(256, None, verification_allowed_networks=networks)
    for url in ("http://127.0.0.1:9/", "http://localhost/", "http://10.1.2.3/"):
        assert _of_verification(url, limits) == {}
    assert list(_of_verification("http://10.2.0.1/", limits)) == [f"{VERIFICATION}.url"]


@pytest.mark.parametrize(
    "url",
    [
        *INVALID_URLS.split(),
        "http://exa mple.com/",
        "http://exam\nple.com/",
        f"http://{'a.' * 130}example/",
    ],
)
def test_invalid_verification_urls_are_refused(url: str) -> None:
    assert f"{VERIFICATION}.url" in _of_verification(url)


RESERVED_HEADERS = (
    "Host content-length Content-Type Transfer-Encoding Connection Proxy-Authorization "
    "traceparent Accept-Encoding"
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in RESERVED_HEADERS.split()),
        *((name, "x") for name in ("", "a b", "a:b", "a\r\nb", "ü", "a" * 129)),
        *(("X-A", value) for value in ("a\r\nB: c", "a\n", "\0", " a", "a ", "x" * 1025, "\u20ac")),
    ],
)
def test_invalid_verification_headers_are_refused(name: str, value: str) -> None:
    assert list(_of_mode({"actions": {"join": _verified(**{name: value})}})) == [
        f"{VERIFICATION}.headers.{name}"
    ]


def test_duplicate_headers_are_refused() -> None:
    headers: dict[str, Any] = {"Authorization": "Bearer x y", "X-Empty": "", "X-Name": "\xfc"}
    assert _of_mode({"actions": {"find": _verified(**headers)}}) == {}
    problems = _of_mode({"actions": {"join": _verified(**{"X-A": "1", "x-a": "2"})}})
    assert list(problems.values()) == ["occurs more than once, in different case"]


@pytest.mark.parametrize("action", ["find", "join", "create"])
def test_every_action_of_every_version_is_validated(action: str) -> None:
    older = version(LATER_ID, duel={"actions": {action: _verified("http://127.0.0.1/")}})
    path = f"versions.1.matchmaker.game_modes.duel.actions.{action}.verification.url"
    assert list(_problems(versions=[version(duel={}), older])) == [path]


@pytest.mark.parametrize(
    ("captcha", "fields"),
    [
        ({"captcha_a": A}, ["requests_before_reverify", "verification_ttl"]),
        ({**RULE, "requests_before_reverify": 601}, ["requests_before_reverify"]),
        ({**RULE, "verification_ttl": 43_200_001}, ["verification_ttl"]),
        ({**RULE, "captcha_a": {"site_key": "k"}}, ["captcha_a.secret_key"]),
        ({**RULE, "captcha_b": A}, ["captcha_b"]),
    ],
)
def test_captcha_rules(captcha: dict[str, Any], fields: list[str]) -> None:
    problems = _of_level({"captcha": captcha})
    assert sorted(problems) == [f"{MATCHMAKER}.captcha.{field}" for field in fields]
    if fields == ["captcha_b"]:
        assert "has not set captcha.captcha_b_url" in problems[f"{MATCHMAKER}.captcha.captcha_b"]


def test_development_tokens_are_validated() -> None:
    good: dict[str, Any] = {"token_id": VERSION_ID, "expires_ms": "1", "hostname": "dev.example"}
    both = {"port": 1, "port_range": {"min": 1, "max": 2}, "protocol": "udp"}
    for tokens, problems in (
        ([{**good, "ports": {"game": {"port": 1, "protocol": "udp"}}}], []),
        ([good, good], ["1.token_id"]),
        *(
            ([{**good, "hostname": name}], ["0.hostname"])
            for name in ("a:80", "http://a", "", "a b")
        ),
        ([{**good, "ports": {"game": both}}], ["0.ports.game.port_range"]),
        ([{**good, "ports": {"game": {"protocol": "quic"}}}], ["0.ports.game.protocol"]),
    ):
        expected = [f"development_tokens.{path}" for path in problems]
        assert list(_problems(development_tokens=tokens)) == expected


def test_admission_rules_are_none_without_checks() -> None:
    enabled = {"find": {"enabled": True}, "join": {"enabled": False}}
    for only in (
        version(duel={}),
        version(level={"captcha": {}}, duel={}),
        version(duel={"actions": enabled}),
    ):
        assert resolved_namespace(configuration(versions=[only])).admission_rules is None


def test_admission_rules_by_version() -> None:
    old = version(VERSION_ID, level={"captcha": RULE}, duel={"actions": {"join": _verified()}})
    new = version(LATER_ID, duel={"actions": {"find": _verified()}}, tag={})
    rules = resolved_namespace(
        configuration(versions=[old, new], current_version_id=LATER_ID)
    ).admission_rules
    assert rules is not None
    assert rules.captcha is None
    assert (list(rules.find), list(rules.create)) == (["duel"], [])
    of_old = rules.join(raw_id(VERSION_ID), "duel")
    assert of_old.captcha is not None
    assert of_old.verification is not None
    # An unknown version has the rules of the current one.
    for version_id, mode in ((raw_id(LATER_ID), "duel"), (bytes(16), "duel"), (bytes(16), "gone")):
        assert rules.join(version_id, mode) == JoinRules(None, None)
