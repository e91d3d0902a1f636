"""Size limit of the matchmaker part of a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.control.configuration_encoding import to_feed
from pyservice.control.configuration_validation import MATCHMAKER_BYTES_MAX, configuration_problems
from pyservice.dataplane import feed_validation
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from tests.control.configurations import CONTEXT
from tests.support.full_service import Developer

MAX = MATCHMAKER_BYTES_MAX


def config_of(size_bytes: int) -> pb.CloudConfig:
    config = pb.CloudConfig()
    modes = config.matchmaker.game_modes.entries
    for number in range(32):
        entries = modes[f"mode-{number:02}"].docker.env.entries
        for value in range(5):
            entries[f"V{value}"] = "v" * 3_900
    rest = size_bytes - to_feed(config).ByteSize()
    assert 0 < rest < 32 * 4_000
    for mode in modes.values():
        step = min(rest, 4_000)
        mode.docker.env.entries["V0"] += "v" * step
        rest -= step
    assert to_feed(config).ByteSize() == size_bytes
    return config


def test_both_planes_have_the_same_limit() -> None:
    assert feed_validation.MATCHMAKER_BYTES_MAX == MAX


def test_largest_configuration_is_accepted() -> None:
    assert configuration_problems(config_of(MAX), CONTEXT) == []
    [problem] = configuration_problems(config_of(MAX + 1), CONTEXT)
    assert list(problem.path) == ["config", "matchmaker", "too-long"]
    assert f"{MAX + 1:,} bytes" in problem.message
    assert f"at most {MAX:,}" in problem.message


def test_command_line_fields_do_not_count() -> None:
    config = config_of(MAX)
    for mode in config.matchmaker.game_modes.entries.values():
        for number in range(64):
            mode.docker.build_args.entries[f"A{number}"] = "a" * 1_000
    assert config.matchmaker.ByteSize() > 2 * MAX
    assert configuration_problems(config, CONTEXT) == []


@pytest.mark.anyio
async def test_too_large_version_is_not_created(developer: Developer) -> None:
    game_id = await developer.game()
    env = {f"V{number}": "v" * 8_000 for number in range(64)}
    modes: dict[str, Any] = {f"m{number}": {"docker": {"env": env}} for number in range(2)}
    config = {"matchmaker": {"game_modes": modes}}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "2.0.0", "config": config}
    answer = await developer.call("create_version", **fields)
    expected = ("config", "matchmaker", "too-long")
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (expected,))
    response = await developer.good("validate_version", **fields)
    assert [tuple(one["path"]) for one in response["errors"]] == [expected]
