from __future__ import annotations

import errno
import re
import subprocess
import tracemalloc

import pytest

from pyservice.runtime.process_environment import (
    ALL_BYTES_MAX,
    WORD_BYTES_MAX,
    EnvironmentTooLong,
    ProcessPort,
    expand_references,
    merge_variables,
    port_variables,
    service_variables,
)

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
def test_ports_are_variables_by_name_and_a_single_port_without(
    ports: dict[str, ProcessPort], expected: dict[str, str]
) -> None:
    assert port_variables(ports) == expected


def test_server_listens_on_all_addresses_only_for_ports_without_edge_guard() -> None:
    assert service_variables({}, {"game": GAME})["HOSTING_BIND_ADDRESS"] == "127.0.0.1"
    ports = {"game": GAME, "chat": ProcessPort(first=30_000, last=30_009, is_direct=True)}
    assert service_variables({}, ports)["HOSTING_BIND_ADDRESS"] == "0.0.0.0"


def test_later_variables_override_earlier_ones() -> None:
    build, configured, service_variables = {"A": "1", "B": "1"}, {"B": "2", "C": "2"}, {"C": "3"}
    assert merge_variables(build, configured, service_variables) == {"A": "1", "B": "2", "C": "3"}


def test_lobby_variables_use_the_names_of_the_client_library() -> None:
    service_variables = {"HOSTING_LOBBY_TOKEN": "t", "PORT": "1"}
    aliases = {
        "LOBBY_TOKEN": "HOSTING_LOBBY_TOKEN",
        "NAMESPACE": "HOSTING_NAMESPACE_ID",
        "PORT": "X",
    }
    assert merge_variables({"X": "of the build"}, service_variables, aliases=aliases) == {
        "X": "of the build",
        "LOBBY_TOKEN": "t",
        **service_variables,
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
    assert expand_references([word], {"PORT": "12000", "A": "$(PORT)"}) == [expected]


def test_argument_may_have_the_kernel_maximum() -> None:
    [word] = expand_references(["$(A)$(A)é"], {"A": "a" * ((WORD_BYTES_MAX - 2) // 2)})
    assert len(word.encode()) == WORD_BYTES_MAX - 1
    [word] = expand_references([word + "x"], {})
    subprocess.run(["true", word], check=True)
    with pytest.raises(OSError, match="too long") as refused:
        subprocess.run(["true", word + "x"], check=True)
    assert refused.value.errno == errno.E2BIG


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (
            ["run", "$(A)" * 256],
            {"A": "a" * 55_000},
            "Argument 1, with its variables expanded, is",
        ),
        (["run", "a" * (WORD_BYTES_MAX + 1)], {}, "Argument 1, with"),
        (["run", "é" * (WORD_BYTES_MAX // 2 + 1)], {}, "Argument 1, with"),
        (["$(A)" * 3], {"A": "a" * 55_000}, "The program's name, with"),
        (["run"], {"A": "a" * (WORD_BYTES_MAX - 1)}, "The variable A is longer than"),
        (["run", *["$(A)$(A)"] * 20], {"A": "a" * 55_000}, "All arguments and variables together"),
        (["run"], {str(n): "a" * 100_000 for n in range(21)}, "All arguments and variables"),
        (["run", *["x"] * (ALL_BYTES_MAX // 10)], {}, "All arguments and variables together"),
    ],
)
def test_oversized_environment_is_rejected_with_a_remedy(
    words: list[str], variables: dict[str, str], sentence: str
) -> None:
    with pytest.raises(
        EnvironmentTooLong, match=f"^{re.escape(sentence)}.*: .* a file of the build\\.$"
    ):
        expand_references(words, variables)


def test_rejected_environment_is_not_expanded() -> None:
    words, variables = ["$(A)" * 5_000] * 64, {"A": "a" * 55_000}
    tracemalloc.start()
    try:
        with pytest.raises(EnvironmentTooLong):
            expand_references(words, variables)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * WORD_BYTES_MAX
