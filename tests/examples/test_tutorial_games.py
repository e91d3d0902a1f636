"""Games of the tutorials with their players."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.doc_pages import Shell
from tests.support.doc_shell import reader_beside
from tests.support.doc_shell import repository_shell as repository_shell
from tests.support.example_run import StartRun
from tests.support.example_run import start_run as start_run
from tests.support.front_metrics import passed_besides_creation

_MESSAGES: Final = 60 * 20
"""Messages that each player receives in a minute."""


@pytest.mark.full
def test_players_of_a_tutorial_need_python_only_for_the_lobby(
    start_run: StartRun, repository_shell: Shell
) -> None:
    run = start_run()
    reader_beside(run, repository_shell).follow("tutorials/browser-game.md")
    cdn = json.loads((run.data_dir / "ready.json").read_text())["cdn"]
    settings = httpx.get(f"http://{cdn}/star-catcher/prod/hosting.json").json()
    with ThreadPoolExecutor(8) as players:
        counts = list(
            players.map(
                lambda _: play_star_catcher(settings["api_url"], settings["public_token"]), range(8)
            )
        )
    assert max(counts) == 8
    metrics = httpx.get(run.metrics_url).text
    assert 'reason="new_lobby"' in metrics
    assert passed_besides_creation(metrics) == set()
    run.stop()


def play_star_catcher(api: str, token: str) -> int:
    """Plays as the page does, and follows the star. Returns the largest number of players."""
    headers = {"Authorization": f"Bearer {token}", "Origin": "http://127.0.0.1:8092"}
    found = httpx.post(
        f"{api}/matchmaker/lobbies/find", headers=headers, json={"game_modes": ["catch"]}
    ).json()
    most = 0
    url = f"ws://{found['ports']['game']['host']}/?token={found['player']['token']}"
    with connect(url) as socket:
        for _ in range(_MESSAGES):
            state = json.loads(socket.recv())
            most = max(most, len(state["players"]))
            socket.send(json.dumps(state["star"]))
    return most
