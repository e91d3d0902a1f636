"""Tokens that commands print for the clients of a game."""

from __future__ import annotations

import json
import urllib.request

import pytest

from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.full


def test_public_token_is_the_same_at_each_call(played: PlayedGame) -> None:
    printed = played.command("public-token").output.strip()
    assert printed.startswith("pub_")
    assert played.good("public-token") == {"api_url": played.url, "token": printed}
    assert played.find()["lobby"]["lobby_id"]


def test_development_token_leads_to_this_machine(played: PlayedGame) -> None:
    token = played.command("dev", "token").output.strip()
    assert token.startswith("dev_")
    assert found_port(played, token) == ("127.0.0.1", 7001)
    token = played.good("dev", "token", "--hostname", "desk.test")["token"]
    assert found_port(played, token) == ("desk.test", 7001)


def found_port(played: PlayedGame, token: str) -> tuple[str, int]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"game_modes": ["duel"]}).encode()
    request = urllib.request.Request(f"{played.url}/matchmaker/lobbies/find", body, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        port = json.load(response)["ports"]["game"]
    return port["hostname"], port["port"]
