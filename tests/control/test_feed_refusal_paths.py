"""API paths of problems that the data plane reports."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pyservice.control.configuration_encoding import json_of, to_feed
from pyservice.control.feed_messages import STORED, refusal_error
from pyservice.dataplane.feed_validation import OperatorLimits, own_problems
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as fed
from pyservice.pb.hosting.internal.v1 import feed_pb2
from tests.control.configurations import changed, read
from tests.support.namespace_configurations import configuration

LEVEL = ("matchmaker",)
DUEL = (*LEVEL, "game_modes", "duel")

NAMESPACE: dict[str, Any] = {
    "access": {
        "domains": ["a.example", "play.example"],
        "cdn_domains": ["arena--prod.cdn.example"],
    },
    "development_tokens": [{"hostname": "x_", "ports": {"game": {"protocol": "https"}}}],
}


def reported(*path: str, reason: str = "is wrong", held_by: str = "") -> tuple[list[str], str]:
    problem = feed_pb2.Problem(path=path, reason=reason, held_by=held_by)
    message = configuration(**NAMESPACE)
    orphans = {"left": feed_pb2.HeldConfiguration()}
    error = refusal_error(message, feed_pb2.Refused(problems=[problem]), STORED, orphans)
    assert error.code == "VALIDATION_FAILED"
    [one] = error.errors
    assert one.path[-1] == ("not-unique" if held_by else "not-allowed")
    return list(one.path[:-1]), one.message


MODE = "versions.0.matchmaker.game_modes.duel.max_players"
PATHS: dict[str, tuple[str, ...]] = {
    "versions.0.matchmaker": ("config", "matchmaker"),
    MODE: ("config", "matchmaker", "game_modes", "duel", "max_players"),
    "versions.0.display_name": ("display_name",),
    "versions.0.version_id": ("version_id",),
    "current_version_id": ("version_id",),
    "matchmaker.lobby_count_max": ("lobby_count_max",),
    "matchmaker.max_players": ("max_players",),
    "access.enable_domain_public_auth": ("enabled",),
    "access.domains": ("domain",),
    "access.domains.1": ("domain",),
    "access.cdn_domains.0": ("name_id",),
    "name_id": ("name_id",),
    "display_name": ("display_name",),
    "development_tokens.0.hostname": ("hostname",),
    "development_tokens.0.ports.game.port": ("ports", "game", "port"),
}
UNSENT = (
    *("", "versions", "versions.0", "environment_tokens.3.sha256", "revoked_token_ids"),
    *("development_tokens", "development_tokens.0.token_id", "retained_versions"),
    *("game.name_id", "revision"),
)


@pytest.mark.parametrize("path", PATHS)
def test_problem_has_the_path_of_its_request(path: str) -> None:
    assert reported(*path.split("."))[0] == list(PATHS[path])


@pytest.mark.parametrize("path", UNSENT)
def test_problem_of_an_unsent_field_has_a_sentence(path: str) -> None:
    named = f"'s {path}" if path else ""
    expected: tuple[list[str], str] = ([], f"the namespace{named} is wrong")
    assert reported(*filter(None, path.split("."))) == expected


def test_value_of_another_namespace_is_reported_as_taken() -> None:
    reason = "belongs to another namespace"
    path, sentence = reported("access", "domains", "1", reason=reason, held_by="other")
    assert (path, sentence) == (["domain"], f"domain play.example {reason}")
    path, sentence = reported("access", "cdn_domains", "0", reason=reason, held_by="other")
    assert path == ["name_id"]
    assert sentence == f"name_id makes the host arena--prod.cdn.example, which {reason}"
    path, sentence = reported("name_id", reason=reason, held_by="left")
    assert path == ["name_id"]
    assert sentence.startswith(f"name_id {reason}; that namespace belongs to another database")


FLAWS: dict[tuple[str, ...], Any] = {
    (*LEVEL, "max_players"): 300,
    (*LEVEL, "max_players_party"): 300,
    (*LEVEL, "captcha", "captcha_a"): {"secret_key": "s", "site_key": "k"},
    (*LEVEL, "docker", "env", "PORT"): "1",
    (*LEVEL, "docker", "ports", "game", "protocol"): "https",
    (*LEVEL, "regions", "nowhere"): {},
    (*DUEL, "max_players_direct"): 300,
    (*DUEL, "actions", "join", "verification", "url"): "http://127.0.0.1/",
    (*DUEL, "actions", "create", "verification", "headers", "Host"): "x",
    (*DUEL, "docker", "ports", "ws", "proxy"): "none",
    (*DUEL, "docker", "ports", "game", "port_range"): {"min": 1, "max": 2},
    (*DUEL, "docker", "env", "HOSTING_X"): "1",
    (*DUEL, "docker", "args"): ["x" * 1_025],
    (*DUEL, "idle_lobbies"): {"min": 2, "max": 1},
    (*DUEL, "idle_lobbies", "max"): 33,
    (*DUEL, "player_token_ttl"): 1,
    (*DUEL, "regions", "local", "idle_lobbies", "min"): 40,
}


@pytest.mark.parametrize("flaw", FLAWS, ids=".".join)
def test_every_configuration_path_maps_to_its_source(flaw: tuple[str, ...]) -> None:
    config = read(changed(flaw, FLAWS[flaw]))
    message = configuration()
    message.versions[0].matchmaker.CopyFrom(to_feed(config))
    limits = OperatorLimits(256, ("local", "eu-1", "us-1"), (), ("captcha_b",))
    problems = own_problems(message, limits, NamespaceIndex())
    assert problems
    error = refusal_error(message, feed_pb2.Refused(problems=problems), STORED, {})
    written = {"config": orjson.loads(json_of(config))}
    paths = [one.path[:-1] for one in error.errors]
    assert not any("versions.0" in one.message for one in error.errors)
    flaw_path = ("config", *flaw)
    # Problems of a port's fields are reported at the port.
    assert any(path[: len(flaw_path)] == flaw_path[: len(path)] for path in paths)
    for path in paths:
        assert path[:2] == ("config", "matchmaker")
        below: Any = written
        for name in path:
            below = below[int(name)] if isinstance(below, list) else below[name]


def test_feed_has_no_unknown_field() -> None:
    """A new field of the feed needs an API path for its problems."""
    assert set(fed.NamespaceConfiguration.DESCRIPTOR.fields_by_name) == {
        *("namespace_id", "source_epoch", "revision", "game", "name_id", "display_name"),
        *("current_version_id", "versions", "matchmaker", "access", "revoked_token_ids"),
        *("environment_tokens", "development_tokens", "retained_versions"),
    }
