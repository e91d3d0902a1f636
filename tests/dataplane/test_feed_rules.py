"""What of a configuration is refused beyond the rules in its proto, with path and reason."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

import pytest

from pyservice.dataplane.feed_validation import OperatorLimits, configuration_problems
from pyservice.dataplane.namespace_index import NamespaceIndex
from tests.dataplane.configurations import (
    OTHER_NAMESPACE_ID,
    VERSION_ID,
    configuration,
    version,
)

LIMITS = OperatorLimits(player_limit_max=256, regions={"eu", "us"})
MODE = "versions.0.matchmaker.game_modes.duel"


def _told(held: NamespaceIndex | None = None, **changes: Any) -> dict[str, str]:
    problems = configuration_problems(configuration(**changes), LIMITS, held or NamespaceIndex())
    return {".".join(problem.path): problem.reason for problem in problems}


def _of_mode(mode: dict[str, Any]) -> dict[str, str]:
    return _told(versions=[version(duel=mode)])


def _token(text: str) -> dict[str, str]:
    digest = hashlib.sha256(text.encode()).digest()
    return {"token_id": VERSION_ID, "sha256": b64encode(digest).decode()}


def test_a_good_configuration_has_no_problems() -> None:
    assert _told() == {}
    assert _told(access={"domains": ["play.example.com", "127.0.0.1", "::1"]}) == {}


def test_rules_of_the_proto_and_ours_are_told_together() -> None:
    told = _told(
        name_id="-prod",
        matchmaker={"lobby_count_max": 0, "max_players": 1},
        versions=[version(duel={"max_players": 257, "player_token_ttl": 4999})],
    )
    assert {
        "name_id",
        "matchmaker.lobby_count_max",
        f"{MODE}.max_players",
        f"{MODE}.player_token_ttl",
    } <= told.keys()


@pytest.mark.parametrize("field", ["max_players", "max_players_direct", "max_players_party"])
def test_players_are_limited_by_the_operator(field: str) -> None:
    assert list(_of_mode({field: 257})) == [f"{MODE}.{field}"]
    assert _of_mode({field: 256}) == {}
    assert list(_told(versions=[version(level={field: 257})])) == [f"versions.0.matchmaker.{field}"]


def test_regions_are_the_operators() -> None:
    assert _of_mode({"regions": {"eu": {}}}) == {}
    assert list(_of_mode({"regions": {"eu": {}, "mars": {}}})) == [f"{MODE}.regions.mars"]


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a_b", "a" * 21, VERSION_ID])
def test_names_keep_their_rules(name: str) -> None:
    assert "name_id" in _told(name_id=name)


@pytest.mark.parametrize("text", ["", " a", "a ", "a  b", "a\nb", "a\x00b", "a" * 129])
def test_display_names_keep_their_rules(text: str) -> None:
    assert "display_name" in _told(display_name=text)


def test_display_names_may_be_in_any_script() -> None:
    assert _told(display_name="Производство №1 日本") == {}


def test_the_current_version_is_among_the_versions_and_each_is_there_once() -> None:
    assert list(_told(current_version_id=OTHER_NAMESPACE_ID)) == ["current_version_id"]
    told = _told(versions=[version(duel={}), version(duel={})])
    assert list(told) == ["versions.1.version_id"]


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
def test_ports_are_proxied_or_bare_on_the_host(
    port: dict[str, Any], mode: str, is_fine: bool
) -> None:
    told = _of_mode({"docker": {"network_mode": mode, "ports": {"game": port}}})
    assert list(told) == ([] if is_fine else [f"{MODE}.docker.ports.game"])


@pytest.mark.parametrize("name", ["PORT", "PORT_GAME", "HOSTING_LOBBY_ID"])
def test_names_that_the_service_sets_are_refused(name: str) -> None:
    assert list(_of_mode({"docker": {"env": {name: "x", "REPORT": "y"}}})) == [
        f"{MODE}.docker.env.{name}"
    ]


@pytest.mark.parametrize("domain", ["https://example.com", "example.com:80", "a b", "-a.com", "."])
def test_domains_are_hosts(domain: str) -> None:
    assert "access.domains.0" in _told(access={"domains": [domain]})


def test_a_domain_belongs_to_one_namespace() -> None:
    held = NamespaceIndex()
    held.put(
        configuration(
            namespace_id=OTHER_NAMESPACE_ID,
            name_id="staging",
            access={"cdn_domains": ["Play.example.com"]},
        )
    )
    told = _told(held, access={"domains": ["mine.example.com", "play.example.com"]})
    assert told == {"access.domains.1": "belongs to another namespace"}
    told = _told(held, access={"cdn_domains": ["play.example.com"]})
    assert told == {"access.cdn_domains.0": "belongs to another namespace"}
    assert _told(held, access={"domains": ["other.example.com"]}) == {}
    off = {"enable_domain_public_auth": False, "domains": ["play.example.com"]}
    assert _told(held, access=off) == {}


def test_the_same_domain_twice_is_told() -> None:
    told = _told(access={"domains": ["a.example"], "cdn_domains": ["A.example"]})
    assert list(told) == ["access.cdn_domains.0"]


def test_a_name_belongs_to_one_namespace() -> None:
    held = NamespaceIndex()
    held.put(configuration(namespace_id=OTHER_NAMESPACE_ID))
    assert _told(held) == {"name_id": "is the name of another namespace of the game"}


def test_whose_a_thing_is_only_the_operators_log_tells(capsys: pytest.CaptureFixture[str]) -> None:
    held = NamespaceIndex()
    secret = {
        "namespace_id": OTHER_NAMESPACE_ID,
        "name_id": "hidden",
        "access": {"domains": ["play.example.com"]},
        "environment_tokens": [_token("env_one")],
    }
    held.put(configuration(**secret))
    told = _told(
        held,
        access={"domains": ["play.example.com"]},
        environment_tokens=[_token("env_one")],
    )
    assert set(told) == {"access.domains.0", "environment_tokens.0.sha256"}
    assert "hidden" not in str(told)
    assert OTHER_NAMESPACE_ID not in str(told)
    assert "arena/hidden" in "".join(capsys.readouterr())


def test_a_namespace_does_not_stand_in_its_own_way() -> None:
    held = NamespaceIndex()
    same = {
        "access": {"domains": ["a.example"]},
        "environment_tokens": [_token("env_one")],
    }
    held.put(configuration(**same))
    assert _told(held, revision=2, **same) == {}


def test_a_token_is_there_once() -> None:
    tokens = [_token("env_one"), _token("env_one")]
    assert list(_told(environment_tokens=tokens)) == ["environment_tokens.1.sha256"]
    held = NamespaceIndex()
    held.put(
        configuration(
            namespace_id=OTHER_NAMESPACE_ID,
            name_id="staging",
            environment_tokens=[_token("env_one")],
        )
    )
    told = _told(held, environment_tokens=[_token("env_one")])
    assert told == {"environment_tokens.0.sha256": "belongs to another namespace"}
