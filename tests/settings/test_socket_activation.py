"""Variables with which systemd passes listening sockets."""

from __future__ import annotations

import pytest

from pyservice.settings.socket_activation import passed_descriptors


def test_passed_sockets_begin_at_descriptor_3() -> None:
    assert passed_descriptors({"LISTEN_PID": "7", "LISTEN_FDS": "2"}, pid=7) == range(3, 5)


@pytest.mark.parametrize(
    "environ",
    [{}, {"LISTEN_FDS": "2"}, {"LISTEN_PID": "7"}, {"LISTEN_PID": "8", "LISTEN_FDS": "2"}],
)
def test_no_sockets_without_both_variables_for_this_process(environ: dict[str, str]) -> None:
    assert not passed_descriptors(environ, pid=7)


@pytest.mark.parametrize(
    "environ",
    [
        {"LISTEN_PID": "me", "LISTEN_FDS": "2"},
        {"LISTEN_PID": "", "LISTEN_FDS": "2"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "two"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "-1"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "0"},
        {"LISTEN_PID": "7", "LISTEN_FDS": "1001"},
    ],
)
def test_other_values_are_a_problem(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"LISTEN_(PID|FDS)=.*: is no value of systemd; let"):
        passed_descriptors(environ, pid=7)
