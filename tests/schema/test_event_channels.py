"""Event channels of a party: at most one for each other member, each with a well-formed secret."""

from __future__ import annotations

import pytest

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.validation import validate

LOBBY = "00010000-0000-4000-8000-000000000001"


@pytest.mark.parametrize("party_size", [None, 1, 2])
def test_channel_needs_a_party_member_beside_the_caller(party_size: int | None) -> None:
    secrets = ["mina" * 6, "ole-" * 6]
    for request in (
        pb.FindLobbyRequest(game_modes=["a"], event_channels=secrets, party_size=party_size),
        pb.JoinLobbyRequest(lobby_id=LOBBY, event_channels=secrets, party_size=party_size),
    ):
        assert [problem.path for problem in validate(request)] == [("event_channels", "too-many")]
        request.party_size = 3
        assert not validate(request)
        request.event_channels[1] = "too short"
        assert [problem.path for problem in validate(request)] == [
            ("event_channels", "1", "too-short"),
            ("event_channels", "1", "invalid"),
        ]


def test_channels_over_the_party_limit_are_one_problem() -> None:
    request = pb.FindLobbyRequest(game_modes=["a"], event_channels=["a" * 22] * 64, party_size=64)
    assert [problem.path for problem in validate(request)] == [("event_channels", "too-many")]
