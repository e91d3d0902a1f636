from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.schema.methods import METHODS
from pyservice.transport.rate_limits import (
    CLIENT_OPERATIONS,
    CONTROL_OPERATIONS,
    AddressOrTokenLimit,
    Buckets,
    Limits,
    Rate,
)

ADDRESS = bytes([203, 0, 113, 9])
TOKEN = b"t" * 16


def take(buckets: Buckets, times: int, now: float, key: bytes = b"k") -> int:
    return sum(buckets.take(key, now) == 0.0 for _ in range(times))


def test_burst_and_then_the_rate_are_allowed() -> None:
    buckets = Buckets(Rate(20, 100))
    assert take(buckets, 200, 0.0) == 100
    assert take(buckets, 200, 1.0) == 20
    assert take(buckets, 200, 1.05) == 1
    assert take(buckets, 200, 1000.0) == 100


def test_rejected_request_gets_the_time_of_the_next_token() -> None:
    buckets = Buckets(Rate(2, 1))
    assert buckets.take(b"k", 10.0) == 0.0
    assert buckets.take(b"k", 10.1) == pytest.approx(0.4)
    assert buckets.take(b"k", 10.5) == 0.0


def test_rejected_request_costs_nothing() -> None:
    buckets = Buckets(Rate(1, 1))
    assert take(buckets, 1000, 0.0) == 1
    assert take(buckets, 1, 1.0) == 1


def test_keys_have_separate_limits() -> None:
    buckets = Buckets(Rate(1, 2))
    assert take(buckets, 5, 0.0, b"a") == 2
    assert take(buckets, 5, 0.0, b"b") == 2


@given(
    rate=st.integers(1, 50),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 3000), min_size=1, max_size=200),
)
def test_buckets_agree_with_an_exact_simulation(rate: int, burst: int, gaps: list[int]) -> None:
    buckets = Buckets(Rate(rate, burst))
    tokens, now_ms = burst * 1000, 0
    for gap_ms in gaps:
        now_ms += gap_ms
        tokens = min(burst * 1000, tokens + gap_ms * rate)
        is_allowed = buckets.take(b"k", now_ms / 1000) == 0.0
        assert is_allowed == (tokens >= 1000)
        tokens -= 1000 * is_allowed


def test_memory_is_limited_by_recent_tenants() -> None:
    buckets = Buckets(Rate(20, 100), max_keys=1000)
    for number in range(100_000):
        buckets.take(number.to_bytes(4, "big"), number * 1e-6)
        assert len(buckets) <= 1000
    buckets.take(b"k", 100.0)
    buckets.take(b"k", 200.0)
    assert len(buckets) <= 2


def test_forgetting_a_tenant_adds_no_tokens() -> None:
    buckets = Buckets(Rate(1, 10))
    now = 0.0
    assert take(buckets, 20, now) == 10
    # Requests of other tenants arrive all the time, so that generations change as often as
    # possible.
    for step in range(1, 100):
        now = step * 0.5
        buckets.take(step.to_bytes(4, "big"), now)
        assert take(buckets, 20, now) == (1 if step % 2 == 0 else 0)


def test_rate_of_zero_is_unlimited() -> None:
    assert take(Buckets(Rate(0, 1)), 1000, 0.0) == 1000


@pytest.mark.parametrize(("per_second", "burst"), [(-1, 1), (1, 0)])
def test_invalid_rate_is_rejected(per_second: float, burst: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate(per_second, burst)


def test_changed_rate_applies_at_once() -> None:
    limits = Limits(Rate(1, 1), Rate(1, 1))
    limit = limits.data_plane_limit("find")
    assert limit is not None
    assert admitted(limit, 5) == 1
    limits.change(Rate(1, 4), Rate(1, 1))
    assert admitted(limit, 5) == 3
    limits.change(Rate(0, 1), Rate(1, 1))
    assert admitted(limit, 5) == 5


def admitted(
    limit: AddressOrTokenLimit,
    times: int,
    address: bytes = ADDRESS,
    token: bytes = TOKEN,
    is_game_back_end: bool = False,
) -> int:
    waits = [
        limit.wait_s(address, token, 0.0, is_game_back_end=is_game_back_end) for _ in range(times)
    ]
    return waits.count(0.0)


def test_client_operations_share_the_bucket_of_an_address() -> None:
    limits = Limits(Rate(1, 3), Rate(1, 3))
    find, lobbies = limits.data_plane_limit("find"), limits.data_plane_limit("list")
    assert find is not None
    assert lobbies is not None
    assert admitted(find, 2) + admitted(lobbies, 2) == 3
    assert admitted(find, 1, token=b"other") == 0
    assert admitted(find, 1, address=b"else") == 1


def test_back_end_counts_by_its_token() -> None:
    limit = Limits(Rate(1, 2), Rate(1, 2)).data_plane_limit("find")
    assert limit is not None
    addresses = [bytes([1, 1, 1, number]) for number in range(3)]
    assert [admitted(limit, 1, address, is_game_back_end=True) for address in addresses] == [
        1,
        1,
        0,
    ]
    assert admitted(limit, 1) == 1


def test_attach_counts_by_token() -> None:
    limit = Limits(Rate(1, 2), Rate(1, 3)).data_plane_limit("attach")
    assert limit is not None
    assert admitted(limit, 5) == 3
    assert admitted(limit, 5, token=b"other") == 3


def test_lobby_operations_have_no_limit() -> None:
    limits = Limits()
    for slug in ("connected", "disconnected", "ready", "closed", "set_state", "heartbeat"):
        assert limits.data_plane_limit(slug) is None


def test_every_limited_operation_exists() -> None:
    slugs = {method.slug for method in METHODS.values()}
    assert slugs >= CLIENT_OPERATIONS | CONTROL_OPERATIONS


def test_control_operations_count_per_token_or_address() -> None:
    limits = Limits(client=Rate(0, 1), control=Rate(1, 2))
    limit, same = limits.control_plane_limit("create_game"), limits.control_plane_limit("get_games")

    def refused(
        limit: AddressOrTokenLimit, address: bytes, token: bytes, *, has_token: bool
    ) -> bool:
        return limit.wait_s(address, token, 0.0, is_game_back_end=has_token) > 0

    assert not refused(limit, ADDRESS, TOKEN, has_token=True)
    assert not refused(same, b"elsewhere", TOKEN, has_token=True)
    assert refused(limit, b"elsewhere", TOKEN, has_token=True)
    assert not refused(limit, ADDRESS, b"another", has_token=True)
    assert not refused(limit, ADDRESS, b"x", has_token=False)
    assert not refused(limit, ADDRESS, b"y", has_token=False)
    assert refused(limit, ADDRESS, b"z", has_token=False)
    limits.change(Rate(0, 1), Rate(0, 1))
    assert not refused(limit, ADDRESS, b"z", has_token=False)


def test_tokenless_creation_has_its_own_rate_per_address() -> None:
    limits = Limits(control=Rate(0, 1), anonymous=Rate(1, 2))
    limit = limits.control_plane_limit("prepare_device_link")
    waits = [limit.wait_s(ADDRESS, ADDRESS, 0.0, is_game_back_end=False) for _ in range(3)]
    assert waits[:2] == [0.0, 0.0]
    assert waits[2] > 0
    assert not limit.wait_s(b"elsewhere", b"elsewhere", 0.0, is_game_back_end=False)
    limits.change(Rate(0, 1), Rate(0, 1), Rate(0, 1))
    assert not limit.wait_s(ADDRESS, ADDRESS, 0.0, is_game_back_end=False)


def test_returned_token_can_be_taken_again() -> None:
    buckets = Buckets(Rate(0.001, 2))
    assert [buckets.take(ADDRESS, 0.0) > 0 for _ in range(3)] == [False, False, True]
    buckets.put_back(ADDRESS)
    buckets.put_back(b"nobody")
    assert [buckets.take(ADDRESS, 0.0) > 0 for _ in range(2)] == [False, True]
