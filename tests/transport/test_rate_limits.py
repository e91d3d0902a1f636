from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import RequestMetrics
from pyservice.schema.methods import METHODS
from pyservice.transport.rate_limits import Limits, OperationLimit
from tests.support.rate_limits import rates

ADDRESS = bytes([203, 0, 113, 9])
TOKEN = b"t" * 16
GROUP = b"g" * 16


def caller(
    kind: TokenKind = TokenKind.PUBLIC,
    address: bytes = ADDRESS,
    token: bytes = TOKEN,
    group: bytes = GROUP,
) -> Caller:
    return Caller(kind, b"", b"", token, Call("", address), None, group)


def refusals(limit: OperationLimit | None, callers: Iterable[Caller]) -> list[str]:
    """Returns the name of the limit that refuses each call, or an empty name."""
    assert limit is not None
    meter = RequestMetrics().http.meter("find")
    names = []
    for one in callers:
        try:
            limit.check(one, meter)
            names.append("")
        except ServiceError as error:
            names.append(error.metadata["limit"])
    return names


def admitted(limit: OperationLimit | None, times: int, one: Caller | None = None) -> int:
    return refusals(limit, [one or caller()] * times).count("")


def addresses(count: int) -> Iterator[bytes]:
    return (number.to_bytes(8, "big") for number in range(count))


def back_ends(count: int, group: bytes = GROUP) -> list[Caller]:
    """Returns callers with tokens and addresses of their own."""
    keys = addresses(count)
    return [caller(TokenKind.SERVICE, key, key * 2, group) for key in keys]


def test_changed_rate_applies_at_once() -> None:
    limits = Limits(rates(client=(1, 1)))
    limit = limits.data_plane_limit("find")
    assert admitted(limit, 5) == 1
    limits.change(rates(client=(1, 4)))
    assert admitted(limit, 5) == 3
    limits.change(rates(client=(0, 1)))
    assert admitted(limit, 5) == 5
    limits.change(rates(client=(0, 1), client_group=(1, 1)))
    assert admitted(limit, 5) == 0


def test_client_operations_share_the_bucket_of_an_address() -> None:
    limits = Limits(rates(client=(1, 3)))
    find, lobbies = limits.data_plane_limit("find"), limits.data_plane_limit("list")
    assert admitted(find, 2) + admitted(lobbies, 2) == 3
    assert admitted(find, 1, caller(token=b"other")) == 0
    assert admitted(find, 1, caller(address=b"else")) == 1


def test_back_end_counts_by_its_token() -> None:
    limit = Limits(rates(client=(1, 2))).data_plane_limit("find")
    moving = [caller(TokenKind.SERVICE, address) for address in addresses(3)]
    assert refusals(limit, moving) == ["", "", "client"]
    assert admitted(limit, 1) == 1


def test_attach_counts_by_token() -> None:
    limit = Limits(rates(operator=(1, 3))).data_plane_limit("attach")
    assert admitted(limit, 5, caller(TokenKind.SERVICE)) == 3
    assert admitted(limit, 5, caller(TokenKind.SERVICE, token=b"other")) == 3


@pytest.mark.parametrize(("slug", "name"), [("find", "client_group"), ("attach", "operator_group")])
def test_more_tokens_and_addresses_do_not_raise_the_rate_of_a_group(slug: str, name: str) -> None:
    limit = Limits(rates(**{name: (1, 10)})).data_plane_limit(slug)
    assert refusals(limit, back_ends(14)) == [""] * 10 + [name] * 4
    assert admitted(limit, 1, caller(TokenKind.SERVICE, b"new", b"new", b"other group")) == 1


def test_players_of_a_game_share_the_rate_of_its_group() -> None:
    limit = Limits(rates(client_group=(1, 10))).data_plane_limit("find")
    players = [caller(address=address) for address in addresses(12)]
    assert refusals(limit, players) == [""] * 10 + ["client_group"] * 2
    assert admitted(limit, 5, caller(group=b"")) == 5


@pytest.mark.parametrize("is_control", [False, True])
def test_more_tokens_and_groups_do_not_raise_the_rate_of_an_address(is_control: bool) -> None:
    limits = Limits(rates(address=(1, 10)))
    limit = limits.control_plane_limit("x") if is_control else limits.data_plane_limit("find")
    kind = TokenKind.CLOUD if is_control else TokenKind.SERVICE
    callers = [caller(kind, ADDRESS, key * 2, key) for key in addresses(12)]
    assert refusals(limit, callers) == [""] * 10 + ["address"] * 2
    assert admitted(limit, 1, caller(kind, b"else", b"new", b"new")) == 1


def test_limited_operations_of_the_data_plane() -> None:
    limited = {"attach", "create", "detach", "find", "join", "list", "live_events", "regions"}
    slugs = {method.slug for method in METHODS.values()}
    assert {slug for slug in slugs if Limits().data_plane_limit(slug)} == {*limited, "statistics"}


def test_control_operations_count_per_token_or_address() -> None:
    limits = Limits(rates(operator=(1, 2)))
    limit, same = limits.control_plane_limit("create_game"), limits.control_plane_limit("get_games")
    one, elsewhere = caller(TokenKind.CLOUD), caller(TokenKind.CLOUD, b"elsewhere")
    assert admitted(limit, 1, one) + admitted(same, 1, elsewhere) == 2
    assert admitted(limit, 1, elsewhere) == 0
    assert admitted(limit, 1, caller(TokenKind.CLOUD, token=b"another")) == 1
    tokenless = [caller(TokenKind.TOKENLESS, token=key, group=b"") for key in (b"x", b"y", b"z")]
    assert refusals(limit, tokenless) == ["", "", "operator"]
    limits.change(rates(operator=(0, 1)))
    assert refusals(limit, tokenless) == [""] * 3


def test_tokenless_creation_has_its_own_rate_per_address() -> None:
    limits = Limits(rates(operator=(0, 1), anonymous=(1, 2)))
    limit = limits.control_plane_limit("prepare_device_link")
    one = caller(TokenKind.TOKENLESS, token=ADDRESS, group=b"")
    assert refusals(limit, [one] * 3) == ["", "", "anonymous"]
    assert admitted(limit, 1, caller(TokenKind.TOKENLESS, b"elsewhere", group=b"")) == 1
    limits.change(rates(anonymous=(0, 1)))
    assert admitted(limit, 1, one) == 1
