"""Messages and rate limits of the arena protocol."""

import json

import pytest

from examples.arena.messages import (
    BYTES_BURST,
    END_OF_REFUSAL,
    MESSAGE_BYTES_MAX,
    MESSAGES_BURST,
    MESSAGES_PER_S,
    SEQ_MAX,
    End,
    Input,
    TokenBucket,
    Unacceptable,
    lobby_state,
    parse_input,
    roster,
    snapshot,
    welcome,
)
from examples.arena.world import GEM_COUNT, World


def test_input_is_read() -> None:
    assert parse_input('{"seq":7,"dirs":9}', last_seq=6) == Input(7, 9)


def test_longest_legal_input_is_far_below_the_limit() -> None:
    assert len(json.dumps({"seq": SEQ_MAX, "dirs": 15})) < MESSAGE_BYTES_MAX / 4


@pytest.mark.parametrize(
    "message",
    [
        "",
        "hello",
        "{",
        "[]",
        "7",
        "null",
        '"seq"',
        "{}",
        '{"seq":1}',
        '{"dirs":1}',
        '{"seq":"1","dirs":1}',
        '{"seq":1.0,"dirs":1}',
        '{"seq":true,"dirs":1}',
        '{"seq":1,"dirs":false}',
        '{"seq":1,"dirs":null}',
        '{"seq":NaN,"dirs":1}',
        '{"seq":1,"dirs":16}',
        '{"seq":1,"dirs":-1}',
        '{"seq":0,"dirs":1}',
        '{"seq":-5,"dirs":1}',
        '{"seq":2147483648,"dirs":1}',
        '{"seq":' + "9" * 230 + ',"dirs":1}',
        '{"seq":1,"dirs":1} x',
        "[" * 250,
        b'{"seq":1,"dirs":1}',
    ],
)
def test_malformed_message_ends_the_socket(message: str | bytes) -> None:
    with pytest.raises(Unacceptable) as caught:
        parse_input(message, last_seq=0)
    assert caught.value.end is End.MALFORMED


@pytest.mark.parametrize("field", ["x", "y", "position", "score", "id", "tick"])
def test_forbidden_field_ends_the_socket(field: str) -> None:
    with pytest.raises(Unacceptable) as caught:
        parse_input(json.dumps({"seq": 1, "dirs": 1, field: 5}), last_seq=0)
    assert caught.value.end is End.NOT_YOURS_TO_SAY


@pytest.mark.parametrize("seq", [1, 4, 5])
def test_seq_must_increase(seq: int) -> None:
    with pytest.raises(Unacceptable) as caught:
        parse_input(json.dumps({"seq": seq, "dirs": 1}), last_seq=5)
    assert caught.value.end is End.MALFORMED


def test_close_codes_are_unique_and_reasons_fit_a_close_frame() -> None:
    assert len({end.code for end in End}) == len(End)
    for end in End:
        assert end.code == 1001 or 4000 <= end.code <= 4999
        assert len(end.reason.encode()) <= 123


def test_every_player_token_error_has_its_close_code() -> None:
    assert len(set(END_OF_REFUSAL.values())) == len(END_OF_REFUSAL) == 5


def test_1000_messages_per_second_exceed_the_burst() -> None:
    bucket = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, now_s=0)
    accepted = sum(bucket.take(1, number / 1000) for number in range(1000))
    assert accepted == pytest.approx(MESSAGES_BURST + MESSAGES_PER_S, abs=2)
    refused_first = next(
        number for number in range(1000) if not _fresh_bucket_after(number).take(1, number / 1000)
    )
    assert refused_first < 150


def _fresh_bucket_after(messages: int) -> TokenBucket:
    bucket = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, now_s=0)
    for number in range(messages):
        bucket.take(1, number / 1000)
    return bucket


def test_allowed_message_rate_is_never_limited() -> None:
    bucket = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, now_s=0)
    assert all(bucket.take(1, number / MESSAGES_PER_S) for number in range(10_000))


def test_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, now_s=0)
    assert not bucket.take(MESSAGES_BURST + 1, 1_000_000)
    assert bucket.take(MESSAGES_BURST, 1_000_000)


def test_whole_burst_of_the_longest_messages_fits_the_byte_budget() -> None:
    assert BYTES_BURST >= MESSAGES_BURST * MESSAGE_BYTES_MAX


def test_snapshot_has_all_players_and_gems() -> None:
    world = World(seed=1)
    players = [world.join() for _ in range(3)]
    world.steer(players[1].id, 12, 0)
    world.step()
    state = json.loads(snapshot(world))
    assert state["type"] == "state"
    assert state["tick"] == 1
    assert [player[0] for player in state["players"]] == [1, 2, 3]
    assert state["players"][1] == [2, round(players[1].x), round(players[1].y), 0, 12, 0]
    assert len(state["gems"]) == GEM_COUNT


def test_welcome_has_the_id_and_position_of_the_player() -> None:
    world = World(seed=1)
    player = world.join()
    returned = json.loads(welcome(player, "lobby-1"))
    assert (returned["type"], returned["id"], returned["name"], returned["lobby_id"]) == (
        "welcome",
        player.id,
        player.name,
        "lobby-1",
    )
    assert returned["width"] > 0
    assert returned["walls"]


def test_roster_has_names_and_colours() -> None:
    world = World(seed=1)
    player = world.join()
    assert json.loads(roster(world.players.values())) == {
        "type": "roster",
        "players": [[player.id, player.name, player.hue]],
    }


def test_lobby_state_has_the_best_five() -> None:
    world = World(seed=1)
    for score in range(7):
        world.join().score = score
    state = json.loads(lobby_state(world))
    assert state["players"] == 7
    assert [row["score"] for row in state["best"]] == [6, 5, 4, 3, 2]
