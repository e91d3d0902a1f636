"""Storage round trip of a configuration, and its conversion for the feed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from hypothesis import example, given, settings

from pyservice.control.configuration_encoding import (
    decode,
    encode,
    json_of,
    to_feed,
    version_answer,
)
from pyservice.control.configuration_validation import configuration_problems
from pyservice.dataplane import feed_validation
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.edge import http_json_codec
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as fed
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.methods import METHODS
from tests.control.configurations import (
    CONTEXT,
    DOCKER,
    EVERYTHING,
    VERIFICATION,
    changed,
    good_configurations,
    read,
    read_text,
)
from tests.support.namespace_configurations import VERSION_ID, configuration, resolved_namespace

_encode_answer = http_json_codec.encoder(METHODS["hosting.v1.Versions.GetVersion"])


def test_storage_round_trip_is_exact() -> None:
    config = decode(encode(read(EVERYTHING)))
    assert orjson.loads(json_of(config)) == EVERYTHING
    fields = {"create_ts": "2024-02-29T12:30:00.000Z", "display_name": "1", "version_id": "v"}
    answer = pb.GetVersionResponse(version=pb.GameVersion(config=config, **fields))
    assert orjson.loads(_encode_answer(answer)) == {"version": {"config": EVERYTHING, **fields}}


@pytest.mark.parametrize("document", [EVERYTHING, {}])
def test_stored_text_equals_its_message(document: Any) -> None:
    config = read(document)
    version = pb.GameVersion(
        config=config, create_ts="2024-02-29T12:30:00.000Z", display_name='a "é"', version_id="v"
    )
    answer = pb.GetVersionResponse(version=version)
    prepared = version_answer(
        encode(config), json_of(config), version.create_ts, version.display_name, "v"
    )
    assert _encode_answer(prepared) == _encode_answer(answer)
    assert pb.GetVersionResponse.FromString(prepared.SerializeToString()) == answer


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"cdn": {}, "engine": {}, "kv": {}, "matchmaker": {}, "scripts": {}},
        {"cdn": {"routes": [], "build_env": {}}},
        {"matchmaker": {"game_modes": {}, "regions": {}, "docker": {}}},
        {"matchmaker": {"game_modes": {"a": {"docker": {"args": [], "env": {}, "ports": {}}}}}},
        {"matchmaker": {"game_modes": {"a": {"actions": {}, "max_drain_ms": 0}}}},
        {"matchmaker": {"captcha": {}}},
    ],
)
def test_empty_stays_empty_and_absent_stays_absent(document: Any) -> None:
    assert orjson.loads(json_of(decode(encode(read(document))))) == document


def test_null_means_absent() -> None:
    document = {"cdn": None, "kv": None, "engine": {"godot": None}, "scripts": None}
    assert orjson.loads(json_of(read(document))) == {"engine": {}}


def test_hidden_fields_keep_their_bytes() -> None:
    raw = b'{ "big": 123456789012345678901234567890, "f": 1.50,\n "s": "\\u00e9", "n": null }'
    config = read_text(b'{"kv":' + raw + b', "engine" : { "unity":\t' + raw + b"}}")
    assert json_of(config) == b'{"engine":{"unity":' + raw + b'},"kv":' + raw + b"}"


@given(good_configurations)
@example(EVERYTHING)
def test_any_configuration_round_trips_exactly(document: Any) -> None:
    config = read(document)
    encoded = encode(config)
    assert orjson.loads(json_of(decode(encoded))) == document
    assert encode(read_text(json_of(config))) == encoded


ROUTE = ("cdn", "routes", 0)
KIND = (*ROUTE, "middlewares", 0, "kind")
DUEL = ("matchmaker", "game_modes", "duel")
# Path, value at this path, and the expected problem below this path.
MALFORMED: list[tuple[tuple[str | int, ...], Any, tuple[str, ...]]] = [
    (("colour",), 1, ("unknown-field",)),
    (("kv",), [], ("wrong-type",)),
    (("engine", "godot"), "x", ("wrong-type",)),
    (("engine", "unreal"), {}, ("game_module", "required")),
    (("engine", "unreal", "x"), 1, ("unknown-field",)),
    (("scripts",), ["x"], ("wrong-type",)),
    (("scripts", "dev"), 1, ("wrong-type",)),
    ((*ROUTE, "priority"), -1, ("too-low",)),
    ((*ROUTE, "priority"), None, ("required",)),
    ((*ROUTE, "glob"), None, ("required",)),
    (("cdn", "routes", 1), {}, ("middlewares", "required")),
    (KIND, {"basic_auth": {}}, ("basic_auth", "unknown-field")),
    (KIND, {}, ("custom_headers", "required")),
    ((*DUEL, "actions", "find"), {}, ("enabled", "required")),
    ((*DUEL, "max_players"), "8", ("wrong-type",)),
    ((*DUEL, "max_players"), 2**32, ("too-high",)),
    (("matchmaker", "idle_lobbies"), {"min": 1}, ("max", "required")),
    (("matchmaker", "captcha", "captcha_a"), {"site_key": "x"}, ("secret_key", "required")),
    (("matchmaker", "docker", "ports", "ws", "routing"), {}, ("unknown-field",)),
    (("matchmaker", "game_modes"), {f"m{one}": {} for one in range(1025)}, ("too-many",)),
]


@pytest.mark.parametrize(("path", "value", "problem"), MALFORMED)
def test_malformed_configuration_is_refused_with_its_path(
    path: tuple[str | int, ...], value: Any, problem: tuple[str, ...]
) -> None:
    with pytest.raises(ServiceError) as raised:
        read(changed(path, value))
    assert raised.value.code == "BODY_INVALID"
    paths = [one.path for one in raised.value.errors]
    assert ("config", *map(str, path), *problem) in paths


def test_display_name_and_config_are_required() -> None:
    with pytest.raises(ServiceError) as raised:
        read(None)
    assert [problem.path for problem in raised.value.errors] == [("config", "required")]
    assert read({}) == pb.CloudConfig()


# Conversion for the feed


def _as_fed(document: dict[str, Any]) -> fed.MatchmakerConfig:
    message = json_format.ParseDict(document, fed.MatchmakerConfig())
    assert isinstance(message, fed.MatchmakerConfig)
    return message


def test_feed_has_no_command_line_fields() -> None:
    level = EVERYTHING["matchmaker"]
    cli_only = ("build_args", "dockerfile", "image")
    docker = {name: value for name, value in DOCKER.items() if name not in cli_only}
    duel = {**level["game_modes"]["duel"], "docker": docker}
    modes = {**level["game_modes"], "duel": duel}
    assert to_feed(read(EVERYTHING)) == _as_fed({**level, "docker": docker, "game_modes": modes})


def test_feed_without_a_matchmaker_has_no_modes() -> None:
    assert to_feed(read({})) == fed.MatchmakerConfig()
    assert to_feed(read({"matchmaker": {"game_modes": {}}})) == fed.MatchmakerConfig()


def test_empty_mode_part_is_fed_where_it_overrides() -> None:
    document = {"matchmaker": {"docker": DOCKER, "game_modes": {"a": {}, "b": {"docker": {}}}}}
    modes = to_feed(read(document)).game_modes
    assert set(modes) == {"a", "b"}
    assert not modes["a"].HasField("docker")
    assert modes["b"].HasField("docker")


def test_captcha_without_a_provider_is_not_fed() -> None:
    document = {"matchmaker": {"captcha": {"requests_before_reverify": 1, "verification_ttl": 1}}}
    assert not configuration_problems(read(document), CONTEXT)
    assert not to_feed(read(document)).HasField("captcha")


_LIMITS = OperatorLimits(
    player_limit_max=CONTEXT.player_limit_max,
    regions=CONTEXT.regions,
    captcha_providers=CONTEXT.captcha_providers,
)


@given(good_configurations)
@example(EVERYTHING)
def test_data_plane_accepts_accepted_configurations(document: Any) -> None:
    config = read(document)
    assert configuration_problems(config, CONTEXT) == []
    namespace = configuration()
    namespace.versions[0].matchmaker.CopyFrom(to_feed(config))
    problems = feed_validation.configuration_problems(namespace, _LIMITS, NamespaceIndex())
    assert [(list(problem.path), problem.reason) for problem in problems] == []
    modes = document.get("matchmaker", {}).get("game_modes", {})
    assert set(resolved_namespace(namespace).modes) == set(modes)
    assert namespace.current_version_id == VERSION_ID


@pytest.mark.full
def test_generated_configurations_cover_every_field() -> None:
    """Without this test the property tests could pass with empty configurations."""
    paths_seen: set[tuple[str, ...]] = set()

    @settings(max_examples=600, deadline=None, database=None, derandomize=True)
    @given(good_configurations)
    def collect(document: Any) -> None:
        _collect(document, (), paths_seen)

    collect()
    expected: set[tuple[str, ...]] = set()
    _collect(EVERYTHING, (), expected)
    assert not expected - paths_seen
    assert len(expected) > 80


_MAPS = ("game_modes", "ports", "regions", "env", "build_env", "build_args", "scripts", "headers")
_PARTS = ("docker", "regions", "idle_lobbies", "verification", "routes", "ports", "game_modes")
_RAW = ("kv", "custom", "godot", "html5", "unity")


def _collect(value: Any, path: tuple[str, ...], paths_seen: set[tuple[str, ...]]) -> None:
    """Adds the paths of the set fields below `_PARTS`. A key becomes `*`, and indexes are left out."""
    paths_seen.add(path)
    if isinstance(value, list):
        for item in value:
            _collect(item, path, paths_seen)
    elif isinstance(value, dict) and not (path and path[-1] in _RAW):
        for name, item in value.items():
            is_key = bool(path) and path[-1] in _MAPS
            above = () if name in _PARTS else path
            _collect(item, (*above, "*" if is_key else name), paths_seen)


def test_secrets_are_returned_and_fed() -> None:
    config = read(EVERYTHING)
    assert b'"secret_key":"s-a"' in json_of(config)
    assert to_feed(config).captcha.captcha_a.secret_key == "s-a"
    duel = to_feed(config).game_modes["duel"]
    assert dict(duel.actions.join.verification.headers) == VERIFICATION["headers"]
