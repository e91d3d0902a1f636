"""Range of host user ids for game servers: its checks and its default."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pyservice import settings
from pyservice.settings import SettingsError, load
from pyservice.settings.user_ids import (
    DEFAULT_CONTAINER_USER_IDS,
    DEFAULT_USER_IDS,
    UserIdRange,
    host_user_ids,
    user_ids_problem,
)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nbig:x:3000000:100::/:/bin/sh\n")
    (tmp_path / "group").write_text("root:x:0:\nstaff:x:4000000:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ((60_000, 200_000), "must be from 65536 to 4294967293"),
        ((200_000, 100_000), "must be from 65536"),
        ((200_000, 265_534), "must have at least 65536 ids"),
        ((2_950_000, 3_050_000), "has the id 3000000 of the user big"),
        ((3_950_000, 4_050_000), "has the id 4000000 of the group staff"),
        ((200_000, 265_535), None),
    ],
)
def test_unusable_range_is_named(etc: Path, ids: tuple[int, int], problem: str | None) -> None:
    found = user_ids_problem(UserIdRange(*ids), etc)
    assert found == problem or (found is not None and problem is not None and problem in found)


@pytest.mark.parametrize("name", ["user_ids", "container_user_ids"])
def test_setting_is_a_checked_range(name: str) -> None:
    assert getattr(load({}, environ={}).runtime, name) is None
    environ = {f"PYSERVICE_RUNTIME__{name.upper()}": "900000-999999"}
    ids = getattr(load({}, environ=environ).runtime, name)
    assert ids is not None
    assert (str(ids), ids.numbers) == ("900000-999999", range(900_000, 1_000_000))
    for text, words in (("900000", "such as 2000000-2065535"), ("900000-900001", "at least 65536")):
        with pytest.raises(SettingsError, match=words):
            load({"runtime": {name: text}}, environ={})


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (
            {"user_ids": "2050000-2150000"},
            ["runtime.user_ids: has 2100000-2150000 in common with runtime.container_user_ids"],
        ),
        (
            {"container_user_ids": "1950000-2050000"},
            ["runtime.container_user_ids: has 2000000-2050000 in common with runtime.user_ids"],
        ),
        (
            {"user_ids": "3000000-3099999", "container_user_ids": "3099999-3199999"},
            [
                "runtime.user_ids: has 3099999-3099999 in common with runtime.container_user_ids",
                "runtime.container_user_ids: has 3099999-3099999 in common with runtime.user_ids",
            ],
        ),
        ({"user_ids": "2100000-2165535", "container_user_ids": "2000000-2065535"}, []),
    ],
)
def test_servers_and_containers_share_no_ids(
    runtime: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch, etc: Path
) -> None:
    monkeypatch.setattr(settings, "host_user_ids", partial(host_user_ids, etc=etc))
    problems: list[str] = []
    try:
        load({"runtime": runtime}, environ={})
    except SettingsError as error:
        problems = [str(problem).removesuffix(" (flag)") for problem in error.problems]
    assert problems == expected


FIXED = (DEFAULT_USER_IDS, DEFAULT_CONTAINER_USER_IDS)


@pytest.mark.parametrize(
    ("subordinate", "expected"),
    [
        ("root:100000:65536", (UserIdRange(100_000, 165_535), DEFAULT_CONTAINER_USER_IDS)),
        ("root:100000:131071", (UserIdRange(100_000, 231_070), DEFAULT_CONTAINER_USER_IDS)),
        ("root:100000:131072", (UserIdRange(100_000, 165_535), UserIdRange(165_536, 231_071))),
        ("0:100000:200000", (UserIdRange(100_000, 234_463), UserIdRange(234_464, 299_999))),
        (
            "root:100000:65536\nroot:300000:100000",
            (UserIdRange(100_000, 165_535), UserIdRange(300_000, 365_535)),
        ),
        ("root:2100000:65536", FIXED),
        ("root:2000000:165536", (DEFAULT_USER_IDS._replace(last=2_099_999), FIXED[1])),
        ("root:2950000:100000\nroot:100000:1000\nbig:100000:200000\nroot:broken", FIXED),
    ],
)
def test_defaults_are_subordinate_ids_of_root(
    etc: Path, subordinate: str, expected: tuple[UserIdRange, UserIdRange]
) -> None:
    assert host_user_ids(None, None, etc) == FIXED
    (etc / "subuid").write_text(subordinate)
    assert host_user_ids(None, None, etc) == FIXED, "groups have no range"
    (etc / "subgid").write_text(subordinate)
    assert host_user_ids(None, None, etc) == expected


def test_default_of_one_range_leaves_out_the_other(etc: Path) -> None:
    for name in ("subuid", "subgid"):
        (etc / name).write_text("root:100000:131072")
    low, high = UserIdRange(100_000, 165_535), UserIdRange(165_536, 231_071)
    other = UserIdRange(3_000_000, 3_065_535)
    assert host_user_ids(low, None, etc) == (low, high)
    assert host_user_ids(None, low, etc) == (high, low)
    assert host_user_ids(other, None, etc) == (other, low)
    assert host_user_ids(None, other, etc) == (UserIdRange(100_000, 231_071), other)


def test_default_ids_belong_to_users_and_groups(etc: Path) -> None:
    (etc / "subuid").write_text("big:100000:65536\n0:500000:131072\nroot:700000:65536\n")
    (etc / "subgid").write_text("root:565536:200000\n")
    servers, containers = host_user_ids(None, None, etc)
    assert servers == UserIdRange(565_536, 631_071)
    assert containers == UserIdRange(700_000, 765_535)
