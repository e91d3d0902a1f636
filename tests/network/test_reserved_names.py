from __future__ import annotations

import pytest

from pyservice.network import reserved_names


@pytest.mark.parametrize("name", ["HOSTING_", "HOSTING_X", "PORT", "PORT_", "PORT_a\nb"])
def test_reserved_variable_names_are_recognised(name: str) -> None:
    assert reserved_names.is_environment_name(name)


@pytest.mark.parametrize("name", ["", "port", "PORTS", "MY_PORT", "HOSTING", "hosting_x"])
def test_other_names_are_allowed(name: str) -> None:
    assert not reserved_names.is_environment_name(name)


@pytest.mark.parametrize("name", ["Connection", "TE", "Proxy-Anything", "content-length"])
def test_connection_headers_match_in_any_case(name: str) -> None:
    assert reserved_names.is_header_of_connection(name)


def test_each_header_is_in_one_list() -> None:
    lists = (
        reserved_names.HEADERS_OF_A_CONNECTION,
        reserved_names.HEADERS_OF_REQUESTS,
        reserved_names.HEADERS_OF_ANSWERS,
    )
    assert len(frozenset().union(*lists)) == sum(map(len, lists))
    assert all(name == name.lower() for names in lists for name in names)


def test_ray_id_header_is_reserved() -> None:
    assert reserved_names.is_header_of_answers("X-Ray-Id")
    assert not reserved_names.is_header_of_requests("X-Ray-Id")
    assert reserved_names.is_header_of_requests("TraceParent")
