"""What the supply of lobbies decides about a group, and how long it leaves one alone whose lobbies end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pyservice.dataplane.idle_lobbies import CrashBackoff, GroupPlan, plan_group
from pyservice.dataplane.resolved_namespace import ResolvedMode, resolve_namespace
from tests.dataplane.configurations import configuration, version

GRACE_MS = 30_000
KEY = (b"n", b"v", "duel", "local")


@dataclass(frozen=True)
class Empty:
    lobby: bytes
    empty_ms: int = 0
    was_used: bool = False
    is_findable: bool = True
    is_ours: bool = True


@dataclass(frozen=True)
class Group:
    starting: int = 0
    empty: tuple[Empty, ...] = ()
    live: int = 0


def mode(low: int, high: int, **fields: Any) -> ResolvedMode:
    idle = {"idle_lobbies": {"min": low, "max": high}}
    return resolve_namespace(configuration(versions=[version(duel=idle | fields)])).modes["duel"]


def fresh(count: int) -> tuple[Empty, ...]:
    return tuple(Empty(bytes([number])) for number in range(count))


@pytest.mark.parametrize(
    ("group", "low", "high", "expected"),
    [
        (Group(), 0, 0, GroupPlan()),
        (Group(), 2, 4, GroupPlan(start=2)),
        (Group(starting=1), 2, 4, GroupPlan(start=1)),
        (Group(starting=3), 2, 4, GroupPlan()),
        (Group(1, fresh(1)), 2, 4, GroupPlan()),
        (Group(0, fresh(4)), 2, 4, GroupPlan()),
        (Group(0, fresh(6)), 2, 4, GroupPlan(stop=fresh(2))),
        (Group(0, fresh(1)), 0, 0, GroupPlan(stop=fresh(1))),
    ],
)
def test_idle_lobbies_are_kept_between_their_bounds(
    group: Group, low: int, high: int, expected: GroupPlan
) -> None:
    assert plan_group(group, mode(low, high), "local", GRACE_MS) == expected


def test_a_lobby_that_everybody_left_is_not_idle_before_its_grace_is_over() -> None:
    left = Empty(b"a", empty_ms=GRACE_MS - 1, was_used=True)
    longer = Empty(b"b", empty_ms=20_000, was_used=True)
    waiting = plan_group(Group(0, (left, longer)), mode(1, 1), "local", GRACE_MS)
    assert waiting == GroupPlan(start=1, recheck_ms=1)
    over = Empty(b"a", empty_ms=GRACE_MS, was_used=True)
    assert plan_group(Group(0, (over,)), mode(1, 1), "local", GRACE_MS) == GroupPlan()
    assert plan_group(Group(0, (over,)), mode(0, 0), "local", GRACE_MS) == GroupPlan(stop=(over,))


def test_private_and_closed_lobbies_count_for_nothing_and_stop_past_the_grace() -> None:
    closed = Empty(b"a", empty_ms=GRACE_MS, was_used=True, is_findable=False)
    left = Empty(b"b", empty_ms=5, was_used=True, is_findable=False)
    decided = plan_group(Group(0, (closed, left)), mode(1, 9), "local", GRACE_MS)
    assert decided == GroupPlan(start=1, stop=(closed,), recheck_ms=GRACE_MS - 5)


def test_one_that_is_closed_before_anybody_came_is_waited_for_until_its_grace_is_over() -> None:
    loading = Empty(b"a", empty_ms=5, is_findable=False)
    waiting = GroupPlan(recheck_ms=GRACE_MS - 5)
    assert plan_group(Group(0, (loading,)), mode(1, 1), "local", GRACE_MS) == waiting, (
        "it may open yet"
    )
    assert plan_group(Group(0, (loading,)), mode(0, 0), "local", GRACE_MS) == waiting
    both = plan_group(Group(1, (loading,)), mode(3, 3), "local", GRACE_MS)
    assert both == GroupPlan(start=1, recheck_ms=GRACE_MS - 5)
    shut = Empty(b"a", empty_ms=GRACE_MS, is_findable=False)
    assert plan_group(Group(0, (shut,)), mode(1, 1), "local", GRACE_MS) == GroupPlan(
        start=1, stop=(shut,)
    )


def test_attached_ones_that_are_closed_are_not_waited_for() -> None:
    attached = Empty(b"a", is_findable=False, is_ours=False)
    assert plan_group(Group(0, (attached,)), mode(1, 1), "local", GRACE_MS) == GroupPlan(start=1)


def test_of_a_former_version_whoever_is_empty_goes() -> None:
    left = Empty(b"a", empty_ms=0, was_used=True)
    attached = Empty(b"b", is_ours=False)
    assert plan_group(Group(2, (left, attached)), None, "local", GRACE_MS) == GroupPlan(
        stop=(left,)
    )


def test_attached_lobbies_are_idle_ones_that_nobody_here_stops() -> None:
    attached = Empty(b"a", is_ours=False)
    assert plan_group(Group(0, (attached,)), mode(1, 1), "local", GRACE_MS) == GroupPlan()
    assert plan_group(Group(0, (attached,)), mode(0, 0), "local", GRACE_MS) == GroupPlan()


def test_nothing_is_started_where_the_mode_is_not_enabled() -> None:
    elsewhere = mode(2, 2, regions={"far": {}})
    assert plan_group(Group(), elsewhere, "local", GRACE_MS) == GroupPlan()
    assert plan_group(Group(), elsewhere, "far", GRACE_MS) == GroupPlan(start=2)


def test_pauses_grow_while_lobbies_end_and_begin_anew_when_all_was_well_for_a_minute() -> None:
    now = [100.0]
    pauses = CrashBackoff(lambda: now[0])
    assert pauses.remaining_s(KEY) == 0
    seen = []
    for _ in range(9):
        pauses.record(KEY)
        seen.append(pauses.remaining_s(KEY))
        now[0] += pauses.remaining_s(KEY)
    assert seen == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    now[0] += 60
    pauses.record(KEY)
    assert pauses.remaining_s(KEY) == 60, "a minute is not longer than a minute"
    now[0] += 60 + 61
    pauses.record(KEY)
    assert pauses.remaining_s(KEY) == 1


def test_groups_whose_pause_is_long_over_are_forgotten_when_another_begins() -> None:
    now = [100.0]
    pauses = CrashBackoff(lambda: now[0])
    for number in range(1_000):
        pauses.record((b"namespace", b"%d" % number, "mode", "local"))
        now[0] += 1
    assert len(pauses._crashes) == 62, "one second of pause, a minute to be well, and this one"
    now[0] += 62
    pauses.record(KEY)
    assert len(pauses._crashes) == 1
