"""Captchas and verifications that are refused when they are fed, with path and reason, and how the
others resolve.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from pyservice.dataplane.feed_validation import OperatorLimits, configuration_problems
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import JoinRules, raw_id, resolve_admission_rules
from tests.dataplane.configurations import VERSION_ID, configuration, version

LATER_ID = "0192f000-0000-7000-8000-0000000000b2"
A = {"secret_key": "s", "site_key": "k"}
RULE: dict[str, Any] = {
    "captcha_a": A,
    "requests_before_reverify": 600,
    "verification_ttl": 43_200_000,
}
ASKED = "versions.0.matchmaker.game_modes.duel.actions.join.verification"
CAPTCHA = "versions.0.matchmaker.captcha"


def _told(limits: OperatorLimits | None = None, **changes: Any) -> dict[str, str]:
    limits = limits or OperatorLimits(256, None, captcha_providers=("captcha_a",))
    problems = configuration_problems(configuration(**changes), limits, NamespaceIndex())
    return {".".join(problem.path): problem.reason for problem in problems}


def _of_captcha(captcha: dict[str, Any]) -> dict[str, str]:
    return _told(versions=[version(level={"captcha": captcha}, duel={})])


def _verified(url: str = "https://example.com/ask", **headers: str) -> dict[str, Any]:
    return {"enabled": True, "verification": {"url": url, "headers": headers}}


def _of_url(url: str, limits: OperatorLimits | None = None) -> dict[str, str]:
    return _told(limits, versions=[version(duel={"actions": {"join": _verified(url)}})])


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
def test_public_urls_are_taken(url: str) -> None:
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
def test_hosts_that_are_not_public_are_refused_with_what_to_do(url: str) -> None:
    told = _of_url(url)
    assert list(told) == [f"{ASKED}.url"]
    assert "verification_allowed_networks" in told[f"{ASKED}.url"]


def test_the_operator_may_allow_a_network() -> None:
    networks = (ip_network("127.0.0.0/8"), ip_network("10.1.0.0/16"))
    limits = OperatorLimits(256, None, verification_allowed_networks=networks)
    for url in ("http://127.0.0.1:9/", "http://localhost/", "http://10.1.2.3/"):
        assert _of_url(url, limits) == {}
    assert list(_of_url("http://10.2.0.1/", limits)) == [f"{ASKED}.url"]


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
def test_what_is_no_url_of_a_public_host_is_refused(url: str) -> None:
    assert f"{ASKED}.url" in _of_url(url)


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
def test_headers_that_are_not_theirs_to_set_are_refused(name: str) -> None:
    told = _told(versions=[version(duel={"actions": {"join": _verified(**{name: "x"})}})])
    assert list(told) == [f"{ASKED}.headers.{name}"]


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\n", "\0", " a", "a ", "x" * 1025, "\u20ac"])
def test_values_that_would_not_be_one_header_are_refused(value: str) -> None:
    told = _told(versions=[version(duel={"actions": {"join": _verified(**{"X-A": value})}})])
    assert list(told) == [f"{ASKED}.headers.X-A"]


def test_other_headers_are_taken_once() -> None:
    headers = {"Authorization": "Bearer x y", "X-Empty": "", "X-Name": "\xfc"}
    assert _told(versions=[version(duel={"actions": {"find": _verified(**headers)}})]) == {}
    told = _told(
        versions=[version(duel={"actions": {"find": _verified(**{"X-A": "1", "x-a": "2"})}})]
    )
    assert list(told.values()) == ["is there more than once, in other letters"]


@pytest.mark.parametrize("action", ["find", "join", "create"])
def test_every_action_of_every_version_is_looked_at(action: str) -> None:
    older = version(LATER_ID, duel={"actions": {action: _verified("http://127.0.0.1/")}})
    told = _told(versions=[version(duel={}), older])
    path = f"versions.1.matchmaker.game_modes.duel.actions.{action}.verification.url"
    assert list(told) == [path]


def test_a_captcha_that_can_be_asked_is_taken() -> None:
    assert _of_captcha(RULE) == {}
    # Without a provider nothing is asked.
    assert _of_captcha({}) == {}


def test_a_provider_without_an_endpoint_is_refused_with_what_to_do() -> None:
    told = _of_captcha({**RULE, "captcha_b": A})
    assert told == {
        f"{CAPTCHA}.captcha_b": (
            "cannot be asked: the operator of this service has not set captcha.captcha_b_url"
        )
    }


def test_a_captcha_says_when_it_is_asked_again() -> None:
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


def test_development_tokens_are_looked_at() -> None:
    def told(*tokens: dict[str, Any]) -> list[str]:
        return list(_told(development_tokens=tokens))

    good: dict[str, Any] = {"token_id": VERSION_ID, "expires_ms": "1", "hostname": "dev.example"}
    assert told({**good, "ports": {"game": {"port": 1, "protocol": "udp"}}}) == []
    assert told(good, good) == ["development_tokens.1.token_id"]
    for hostname in ("a:80", "http://a", "", "a b"):
        assert told({**good, "hostname": hostname}) == ["development_tokens.0.hostname"]
    both = {"port": 1, "port_range": {"min": 1, "max": 2}, "protocol": "udp"}
    assert told({**good, "ports": {"game": both}}) == ["development_tokens.0.ports.game.port_range"]
    path = "development_tokens.0.ports.game.protocol"
    assert told({**good, "ports": {"game": {"protocol": "quic"}}}) == [path]


def test_gates_are_none_where_nothing_is_asked() -> None:
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


def test_gates_of_find_are_the_current_versions_and_of_join_each_versions() -> None:
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
    # A version that is not fed any more: the current one's rules.
    assert gates.join(bytes(16), "duel") == JoinRules(None, None)
    assert gates.join(bytes(16), "gone") == JoinRules(None, None)
