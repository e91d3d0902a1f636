"""Range of host user ids for game servers: its checks and its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.settings import SettingsError, load
from pyservice.settings.user_ids import (
    DEFAULT_USER_IDS,
    UserIdRange,
    default_user_ids,
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
        ((2_050_000, 2_150_000), "has ids in common with containers, 2100000-2165535"),
        ((2_950_000, 3_050_000), "has the id 3000000 of the user big"),
        ((3_950_000, 4_050_000), "has the id 4000000 of the group staff"),
        ((200_000, 265_535), None),
    ],
)
def test_unusable_range_is_named(etc: Path, ids: tuple[int, int], problem: str | None) -> None:
    found = user_ids_problem(UserIdRange(*ids), etc)
    assert found == problem or (found is not None and problem is not None and problem in found)


def test_setting_is_a_checked_range() -> None:
    assert load({}, environ={}).runtime.user_ids is None
    environ = {"PYSERVICE_RUNTIME__USER_IDS": "900000-999999"}
    ids = load({}, environ=environ).runtime.user_ids
    assert ids is not None
    assert (str(ids), ids.numbers) == ("900000-999999", range(900_000, 1_000_000))
    for text, words in (("900000", "such as 2000000-2065535"), ("900000-900001", "at least 65536")):
        with pytest.raises(SettingsError, match=words):
            load({"runtime": {"user_ids": text}}, environ={})


def test_default_is_the_subordinate_range_of_users_and_groups(etc: Path) -> None:
    assert default_user_ids(0, etc) == DEFAULT_USER_IDS
    (etc / "subuid").write_text("big:100000:65536\n0:500000:131072\nroot:700000:65536\n")
    assert default_user_ids(0, etc) == DEFAULT_USER_IDS, "groups have no range"
    (etc / "subgid").write_text("root:565536:200000\nroot:broken\n")
    assert default_user_ids(0, etc) == UserIdRange(565_536, 631_071)


def test_unusable_subordinate_range_is_not_the_default(etc: Path) -> None:
    for name in ("subuid", "subgid"):
        (etc / name).write_text("root:2950000:100000\nroot:100000:1000\n")
    assert default_user_ids(0, etc) == DEFAULT_USER_IDS
