"""Places with the other side: a share for each token and each address, none of which is lost."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from ipaddress import ip_address

import pytest

from pyservice.doors.shares import Shares
from pyservice.errors import ServiceError


def place(
    shares: Shares, token: str | None, address: str = "192.0.2.1"
) -> AbstractContextManager[None]:
    return shares.place(token if token is None else f"Bearer {token}", ip_address(address))


def refusal(shares: Shares, token: str | None, address: str = "192.0.2.1") -> str:
    with pytest.raises(ServiceError) as caught, place(shares, token, address):
        pass
    assert caught.value.code == "OVERLOADED"
    return caught.value.detail


def test_a_token_has_a_quarter_and_others_go_on() -> None:
    shares = Shares(8)
    with ExitStack() as stack:
        for number in range(2):
            # From wherever its requests come.
            stack.enter_context(place(shares, "cloud_a", f"192.0.2.{number}"))
        assert "2 requests of this token" in refusal(shares, "cloud_a", "192.0.2.9")
        with place(shares, "cloud_b"):
            assert len(shares) == 3
    assert len(shares) == 0
    with place(shares, "cloud_a"):
        pass


@pytest.mark.parametrize(
    "header", ["Bearer cloud_a", "bearer cloud_a", "BEARER   cloud_a ", "bEaReR cloud_a  "]
)
def test_a_header_written_in_another_way_is_the_same_token(header: str) -> None:
    shares = Shares(4)
    with (
        place(shares, "cloud_a"),
        pytest.raises(ServiceError),
        shares.place(header, ip_address("192.0.2.2")),
    ):
        pass


def test_an_address_has_half_however_many_tokens_it_sends() -> None:
    shares = Shares(8)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(place(shares, f"cloud_{number}"))
        assert "4 requests of this client address" in refusal(shares, "cloud_x")
        stack.enter_context(place(shares, "cloud_0", "192.0.2.2"))


@pytest.mark.parametrize("nothing", [None, "nonsense", "cloud_", ""])
def test_who_has_no_token_counts_by_address(nothing: str | None) -> None:
    shares = Shares(8)
    with place(shares, nothing), place(shares, None):
        assert refusal(shares, nothing)
        with place(shares, nothing, "192.0.2.2"), place(shares, "cloud_a"):
            pass


def test_addresses_of_one_ipv6_network_are_one() -> None:
    shares = Shares(4)
    with place(shares, None, "2001:db8::1"):
        assert refusal(shares, None, "2001:db8::ffff:1")


def test_all_together_have_no_more_than_there_are() -> None:
    shares = Shares(4)
    with ExitStack() as stack:
        for number in range(4):
            stack.enter_context(place(shares, f"cloud_{number}", f"192.0.2.{number}"))
        assert "4 requests of all clients" in refusal(shares, "cloud_9", "192.0.2.9")


def test_a_request_that_fails_gives_its_place_back() -> None:
    shares = Shares(4)
    with pytest.raises(KeyError), place(shares, "cloud_a"):
        raise KeyError
    assert len(shares) == 0
