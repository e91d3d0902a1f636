from __future__ import annotations

import pytest

from pyservice.settings import Problem, SettingsError, load


def _problems(flags: dict[str, object], environ: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(SettingsError) as caught:
        load(flags, None, environ or {})
    return caught.value.problems


@pytest.mark.parametrize(
    "text", ["20000", "20000-", "25999-20000", "80-25999", "20000-65536", "a-b"]
)
def test_port_range_is_two_ascending_ports(text: str) -> None:
    [problem] = _problems({"runtime": {"host_ports": text}})
    assert problem.name == "runtime.host_ports"
    assert "must be two ports from 1024 to 65535, such as 20000-25999" in problem.message


def test_port_belongs_to_one_range() -> None:
    environ = {"PYSERVICE_RUNTIME__HOST_PORTS": "30000-40000"}
    settings = load({"runtime": {"process_ports": "1024-1024"}}, environ={})
    assert (settings.runtime.process_ports.numbers, str(settings.runtime.host_ports)) == (
        range(1_024, 1_025),
        "20000-25999",
    )
    problems = _problems({"runtime": {"process_ports": "31000-31999"}}, environ)
    assert [(one.name, one.source, one.message) for one in problems] == [
        (
            "runtime.process_ports",
            "flag",
            "has 31000-31999 in common with the public ports of lobbies and servers",
        ),
        (
            "runtime.host_ports",
            "environment",
            "has 30000-31999 in common with the public ports of lobbies and servers",
        ),
        (
            "runtime.host_ports",
            "environment",
            "has 31000-31999 in common with runtime.process_ports",
        ),
    ]
