"""Entries over a field's limit are reported as one problem and are not validated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.json_decoding import compile_decoder
from pyservice.schema.methods import METHODS, descriptor_of, is_map, map_value
from pyservice.schema.size_limits import compile_size_limits, entry_limit
from pyservice.schema.validation import validate


def repeated_fields(descriptor: Descriptor) -> Iterator[FieldDescriptor]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield field
        kind = map_value(field) if is_map(field) else field
        if kind.message_type is not None:
            yield from repeated_fields(kind.message_type)


def test_every_repeated_request_field_has_a_limit() -> None:
    requests = [descriptor_of(method.request) for method in METHODS.values()]
    fields = [field for request in requests for field in repeated_fields(request)]
    assert len(fields) > 20
    for field in fields:
        assert entry_limit(field) is not None, f"{field.full_name} needs max_items or max_pairs"


def paths(message: Message) -> list[tuple[str, ...]]:
    return [problem.path for problem in validate(message)]


def test_entries_within_the_limit_report_all_problems() -> None:
    message = pb.FindLobbyRequest(game_modes=["a b"] * 40, regions=["local"] * 63 + ["EU", "EU"])
    assert paths(message) == [
        ("game_modes", "too-many"),
        ("game_modes", "not-unique"),
        *(("game_modes", str(index), "invalid") for index in range(32)),
        ("regions", "too-many"),
        ("regions", "63", "invalid"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        pb.FindLobbyRequest(game_modes=["a"], tags={f"{n:0129}": "" for n in range(20)}),
        pb.AttachLobbyRequest(
            game_id="g", namespace_id="n", game_mode="a", tags={f"{n:0129}": "" for n in range(20)}
        ),
    ],
    ids=["compiled", "library"],
)
def test_map_validates_as_many_pairs_as_allowed(message: Message) -> None:
    first, *others = paths(message)
    assert first == ("tags", "too-many")
    assert len(set(others)) == 8
    assert {path[-1] for path in others} == {"too-long"}


def test_library_validates_a_copy_within_the_limits() -> None:
    message = pb.AttachLobbyRequest(
        game_id="g",
        namespace_id="n",
        game_mode="a b",
        ports={f"p{number}": pb.AttachedPort(address="::1") for number in range(500)},
    )
    before = message.SerializeToString(deterministic=True)
    violations = paths(message)
    assert violations[0] == ("ports", "too-many")
    assert ("game_mode", "invalid") in violations
    required = [path for path in violations if path[2:] == ("port", "required")]
    assert len(required) == 16
    assert len(violations) == 18
    assert message.SerializeToString(deterministic=True) == before


def excerpt_of(message: Message) -> Any:
    sizes = compile_size_limits(descriptor_of(message))
    assert sizes is not None
    copy = type(message)()
    sizes.excerpt(message, copy)
    assert not sizes.measure(copy)
    return copy


def test_library_list_is_validated_up_to_its_limit() -> None:
    message = pb.HeartbeatRequest(player_tokens=pb.PlayerTokens(tokens=["a"] * 65_537))
    assert paths(message) == [("player_tokens", "too-many")]
    assert len(message.player_tokens.tokens) == 65_537
    assert len(excerpt_of(message).player_tokens.tokens) == 65_535


def configuration(args: int, regions: int) -> configuration_pb2.NamespaceConfiguration:
    modes = {"duel": {"docker": {"args": ["a"] * args, "env": {"A": "b"}}}}
    return configuration_pb2.NamespaceConfiguration(
        namespace_id="n",
        game={},
        environment_tokens=[{"token_id": "t"}],
        revoked_token_ids=["a", "b"],
        versions=[
            {},
            {
                "matchmaker": {
                    "game_modes": modes,
                    "regions": {f"r{number}": {"tier": "t"} for number in range(regions)},
                }
            },
        ],
    )


def test_sizes_are_found_at_any_depth() -> None:
    message = configuration(args=65, regions=66)
    sizes = compile_size_limits(descriptor_of(message))
    assert sizes is not None
    within = ("versions", "1", "matchmaker")
    expected = {(*within, "game_modes", "duel", "docker", "args"), (*within, "regions")}
    assert {finding.location for finding in sizes.measure(message)} == expected
    matchmaker = excerpt_of(message).versions[1].matchmaker
    assert len(matchmaker.regions) == 64
    assert len(matchmaker.game_modes["duel"].docker.args) == 64
    assert {region.tier for region in matchmaker.regions.values()} == {"t"}


def test_excerpt_has_everything_within_the_limits() -> None:
    message = configuration(args=64, regions=64)
    assert excerpt_of(message) == message
    attach = pb.AttachLobbyRequest(
        game_id="g", region="", ports={"a": pb.AttachedPort(port=0)}, tags={"a": "b"}
    )
    assert excerpt_of(attach) == attach
    empty = pb.HeartbeatRequest(player_tokens=pb.PlayerTokens())
    assert excerpt_of(empty).HasField("player_tokens")


def test_message_without_limits_has_no_sizes() -> None:
    assert compile_size_limits(descriptor_of(pb.PlayerConnectedRequest)) is None


def read(message: Message, value: Any) -> list[tuple[str, ...]]:
    findings = compile_decoder(descriptor_of(message))(message, value)
    return [finding.path for finding in findings]


def test_reader_skips_entries_over_the_limit() -> None:
    message = pb.FindLobbyRequest()
    findings = read(message, {"game_modes": ["a"] * 31 + [1] * 1000, "regions": ["x"] * 64})
    assert findings == [("game_modes", "too-many"), ("game_modes", "31", "wrong-type")]
    assert len(message.game_modes) == 32
    assert len(message.regions) == 64


def test_reader_skips_map_pairs_over_the_limit() -> None:
    message = pb.AttachLobbyRequest()
    value = {"tags": dict.fromkeys("abcdefghi", 1), "ports": {f"p{n}": {} for n in range(17)}}
    assert read(message, value) == [
        ("tags", "too-many"),
        *(("tags", name, "wrong-type") for name in "abcdefgh"),
        ("ports", "too-many"),
    ]
    assert sorted(message.ports) == sorted(f"p{number}" for number in range(16))


def test_unwrapped_list_has_its_limit() -> None:
    message = pb.HeartbeatRequest()
    assert read(message, {"player_tokens": ["a"] * 65_535}) == []
    assert read(message, {"player_tokens": ["a"] * 65_536}) == [("player_tokens", "too-many")]
