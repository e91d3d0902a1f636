"""Starts of lobbies and servers, and how players reach them."""

from __future__ import annotations

import socket

import pytest

from tests.placement.differences import facts_of
from tests.placement.story_game import (
    NEVER_EXITED,
    STARTS_S,
    End,
    StoryGame,
    address_of,
    until,
)
from tests.support.game_placement import START_LIMIT_S, GamePlacement


def test_find_starts_a_lobby_that_its_player_reaches(game: StoryGame) -> None:
    found = game.find("plain")
    lobby_id = found["lobby"]["lobby_id"]
    with game.player(found) as player:
        assert player.echo(b"hello") == b"hello"
        until(lambda: game.lobby(lobby_id)["connected_count"] == 1)
    until(lambda: game.lobby(lobby_id)["connected_count"] == 0)
    until(lambda: game.lobby(lobby_id)["state"] == "running")
    record = game.lobby(lobby_id)
    assert (record.get("failure"), record.get("problem")) == (None, None)
    assert game.find("plain")["lobby"]["lobby_id"] == lobby_id


def test_server_gets_its_public_port_and_is_reached(
    game: StoryGame, placement: GamePlacement
) -> None:
    created = game.create()
    port = created["network"]["ports"]["game"]
    assert ("public_port" in port) is facts_of("public-port", placement)
    until(lambda: "public_port" in game.server(created["id"])["network"]["ports"]["game"])
    until(lambda: game.server(created["id"])["status"] == "running")
    until(lambda: game.is_reached(game.server(created["id"])))
    record = game.server(created["id"])
    assert "exit_code" not in record
    assert "failure" not in record


@pytest.mark.full
def test_each_protocol_reaches_its_port(game: StoryGame) -> None:
    protocols = {name: {"protocol": name} for name in ("tcp", "udp", "http")}
    record = game.running(network={"ports": {"game": {"protocol": "tcp"}, **protocols}})
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(STARTS_S)
        datagrams.sendto(b"shoot", address_of(record, "udp"))
        assert datagrams.recv(100) == b"shoot"
    with game.connection(record, "http") as player:
        assert player.echo(b"GET / HTTP/1.1\r\nHost: game\r\n\r\n").startswith(
            b"HTTP/1.1 200 OK\r\n"
        )


@pytest.mark.full
def test_names_of_variables(game: StoryGame, placement: GamePlacement) -> None:
    server_id = game.create(environment={"map-name": "sea"})["id"]
    sentence = facts_of("variable-name", placement)
    if sentence is None:
        until(lambda: game.server(server_id)["status"] == "running")
    else:
        game.check_server_end(server_id, End("failed", "EXEC_FAILED", None, sentence))


@pytest.mark.full
def test_program_that_does_not_exist_is_named(game: StoryGame) -> None:
    lobby_id, kind = game.failed_find("absent")
    assert kind == "program-not-found"
    sentence = "no-such-program is not in any .+"
    game.check_lobby_end(lobby_id, End("failed", "EXEC_FAILED", NEVER_EXITED, sentence))


@pytest.mark.full
def test_lobby_that_is_never_ready_is_ended(game: StoryGame) -> None:
    lobby_id, kind = game.failed_find("mute")
    assert kind == "never-ready"
    sentence = (
        f"The lobby was not ready after {START_LIMIT_S} s: "
        "call lobbies/ready when the server listens"
    )
    game.check_lobby_end(lobby_id, End("failed", "START_TIMEOUT", 128 + 15, sentence))
