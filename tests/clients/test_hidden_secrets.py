"""Secrets of `hosting.toml`: no command prints them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from pyservice_cli.hidden_values import HIDDEN, hide_secrets
from tests.support import game_programs
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in

SECRET: Final = "do-not-print-7f3a"
GAME: Final = f"""
game = "cli-secrets"
[build]
command = ["python3", "-S", "server.py"]
env.PATH = "{game_programs.PYTHON_PATH}"
[matchmaker]
tier = "basic-1d16"
docker.ports.game.protocol = "tcp"
docker.env.API_KEY = "${{env:CLI_TEST_SECRET}}"
docker.env.PLAIN = "value-of-a-variable"
docker.args = ["--key=${{env:CLI_TEST_SECRET}}"]
[matchmaker.game_modes.duel.actions.find]
enabled = true
verification.url = "https://verify.example.com/find"
verification.headers.authorization = "Bearer ${{env:CLI_TEST_SECRET}}"
"""


def test_secret_fields_and_known_secrets_are_hidden() -> None:
    config = {
        "captcha": {"captcha_a": {"site_key": "public", "secret_key": "a"}},
        "docker": {"env": {"MAP": "sea"}, "args": ["--key=abcd", "--map=sea"]},
        "site": {"headers": [{"name": "x-frame-options", "value": "DENY"}]},
        "count": 3,
    }
    assert hide_secrets(config, ["abcd", "e"]) == {
        "captcha": {"captcha_a": {"site_key": "public", "secret_key": HIDDEN}},
        "docker": {"env": {"MAP": HIDDEN}, "args": [HIDDEN, "--map=sea"]},
        "site": {"headers": [{"name": "x-frame-options", "value": "DENY"}]},
        "count": 3,
    }


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_no_command_prints_a_secret(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLI_TEST_SECRET", SECRET)
    (folder / "hosting.toml").write_text(GAME)
    (folder / "server.py").write_text((game_programs.FOLDER / "server.py").read_text())
    first = command("deploy", "--json")
    assert first.status == 0, first.errors
    version = command("show", "version", first.result["version_id"])
    assert version.result["version"]["config"]["matchmaker"]["docker"] == {
        "ports": {"game": {"protocol": "tcp"}},
        "env": {"API_KEY": HIDDEN, "PLAIN": HIDDEN},
        "args": [HIDDEN],
        "image_id": version.result["version"]["config"]["matchmaker"]["docker"]["image_id"],
    }
    (folder / "server.py").write_text("")
    # The new program ends at once, so the deployment fails with its last lines.
    calls = ["deploy --dry-run", "deploy", "show namespace prod", "status", "logs", "why"]
    calls += ["versions", "list versions", "list namespaces", "list lobbies", "list servers"]
    for words in calls:
        for more in ((), ("--json",)):
            if words.startswith("show") and more:
                continue
            ended = command(*words.split(), *more)
            printed = ended.output + ended.errors
            assert printed
            assert SECRET not in printed, words
            assert "value-of-a-variable" not in printed, words
