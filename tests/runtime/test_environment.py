"""Variables and arguments of a game server's process."""

from __future__ import annotations

import pytest

from pyservice.runtime.environment import ProcessPort, environment, port_variables, replaced

GAME = ProcessPort(number=12_000)


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ({}, {}),
        ({"game": GAME}, {"PORT_GAME": "12000", "PORT": "12000"}),
        (
            {"game-chat": GAME, "web": ProcessPort(number=12_001)},
            {"PORT_GAME_CHAT": "12000", "PORT_WEB": "12001"},
        ),
        (
            {"game": ProcessPort(first=20_000, last=20_009)},
            {"PORT_RANGE_MIN_GAME": "20000", "PORT_RANGE_MAX_GAME": "20009"},
        ),
    ],
)
def test_ports_are_told_by_name_and_the_only_one_without(
    ports: dict[str, ProcessPort], expected: dict[str, str]
) -> None:
    assert port_variables(ports) == expected


def test_what_comes_later_is_over_what_came_before() -> None:
    build, configured, ours = {"A": "1", "B": "1"}, {"B": "2", "C": "2"}, {"C": "3"}
    assert environment(build, configured, ours) == {"A": "1", "B": "2", "C": "3"}


def test_a_lobby_has_our_values_under_the_names_that_its_library_reads() -> None:
    ours = {"HOSTING_LOBBY_TOKEN": "t", "PORT": "1"}
    aliases = {
        "LOBBY_TOKEN": "HOSTING_LOBBY_TOKEN",
        "NAMESPACE": "HOSTING_NAMESPACE_ID",
        "PORT": "X",
    }
    assert environment({"X": "of the build"}, ours, aliases=aliases) == {
        "X": "of the build",
        "LOBBY_TOKEN": "t",
        **ours,
    }


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--port=$(PORT)", "--port=12000"),
        ("$(A)$(A)", "$(PORT)$(PORT)"),
        ("$$(PORT)", "$(PORT)"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$PORT ${PORT} $( PORT )", "$PORT ${PORT} $( PORT )"),
        ("$(1A)", "$(1A)"),
        ("", ""),
    ],
)
def test_references_are_replaced_once_and_unknown_names_stay(word: str, expected: str) -> None:
    assert replaced([word], {"PORT": "12000", "A": "$(PORT)"}) == [expected]
