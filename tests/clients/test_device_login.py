"""`pyservice login`, with a token or with a device link that a person approves on the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support.browser import browser as browser
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.full_service import FullService
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full


def test_login_is_approved_on_the_page(
    full_service: FullService, browser: Any, tmp_path: Path
) -> None:
    url = f"http://{full_service.ready['http']}"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    environment.pop("DISPLAY", None)
    program = [sys.executable, "-m", "pyservice_cli"]
    login = subprocess.Popen(
        [*program, "login", url], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert login.stdout is not None
    with login.stdout as lines:
        login.stdout.readline()
        address = login.stdout.readline().strip()
        assert re.fullmatch(rf"{url}/link#link_\S+", address)

        page = browser.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.goto(address)
        assert "link_" not in page.url
        page.fill("#token", "cloud_wrong")
        page.click("button")
        until(lambda: "The token is not valid for this service" in page.inner_text("#status"))
        page.fill("#token", full_service.cloud_token)
        page.click("button")
        until(lambda: f"pyservice login {url} --token -" in page.inner_text("#status"))
        create_game(url, full_service)
        page.click("button")
        until(lambda: page.is_visible("#game"))
        page.select_option("#game", label="Linked game")
        page.click("button")
        until(lambda: "Approved" in page.inner_text("#status"))
        assert not [text for text in problems if "Content Security Policy" in text]
        assert login.wait(PATIENCE_S) == 0
        assert "Logged in to" in lines.read()
    ended = subprocess.run(
        [*program, "whoami", "--json"], env=environment, capture_output=True, check=True
    )
    scope = json.loads(ended.stdout)["scope"]
    assert "game_id" in scope


def create_game(url: str, full_service: FullService) -> None:
    body = {
        "developer_group_id": full_service.group_id,
        "display_name": "Linked game",
        "name_id": "linked-game",
    }
    headers = {
        "Authorization": f"Bearer {full_service.cloud_token}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"{url}/cloud/games", json.dumps(body).encode(), headers)
    urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def test_login_is_stored_for_the_user_alone(
    command: Command, full_service: FullService, tmp_path: Path
) -> None:
    url = f"http://{full_service.ready['http']}"
    assert command("login", url, "--token", "cloud_wrong").status == ExitStatus.NOT_ALLOWED
    assert not list(tmp_path.glob("configuration/**/profiles.json"))
    assert command("login", url, "--token", full_service.cloud_token).status == 0
    (stored,) = tmp_path.glob("configuration/**/profiles.json")
    assert stored.stat().st_mode & 0o777 == 0o600
    assert command("whoami", "--json").result["url"] == url
    assert command("logout").status == 0
    assert "local" not in command("whoami").output
