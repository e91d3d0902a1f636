"""Failures of commands: each one prints its code, and what to do next."""

from __future__ import annotations

import importlib
import json
import pkgutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

import pyservice_cli
from pyservice_cli.api import Api
from pyservice_cli.connections import Connection
from pyservice_cli.failures import (
    _FIRST_REMEDIES,
    CommandFailed,
    ExitStatus,
    InputInvalid,
    Problem,
    Refused,
)
from pyservice_cli.terminal import Terminal
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.doc_pages import code, table_of

ROOT = Path(__file__).resolve().parents[2]
CODES = tomllib.loads((ROOT / "proto/errors.toml").read_text())["codes"]
RAY = "4bf92f3577b34da6a3ce929d0e0e4736"


def failure_classes(kind: type[CommandFailed] = CommandFailed) -> Iterator[type[CommandFailed]]:
    yield kind
    for one in kind.__subclasses__():
        yield from failure_classes(one)


def refused(code: str, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Returns the failure of a call that the service answers with this error."""
    entry = CODES[code]
    problem = {**entry, "code": code, "detail": entry["detail"], "ray_id": RAY}
    body = json.dumps(problem).encode()
    headers = {"x-ray-id": RAY, "content-type": "application/problem+json"}
    response = urllib3.HTTPResponse(body, headers, entry["http"])
    api = Api(Connection("http://127.0.0.1:1", "cloud_x", "test"))
    monkeypatch.setattr("pyservice_cli.api.PATIENCE_S", 0)
    monkeypatch.setattr(api._pools, "request", lambda *_, **__: response)
    with pytest.raises(Refused) as raised:
        api.get("/cloud/games/a")
    return raised.value


def printed(failure: CommandFailed, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    Terminal(False).fail(failure)
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("code", CODES)
def test_error_of_the_service_has_its_code_and_remedy(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failure = refused(code, monkeypatch)
    entry = CODES[code]
    sentence, remedy = printed(failure, capsys)
    assert sentence == f"pyservice: {code}: {entry['title']}."
    own = remedy.removeprefix(_FIRST_REMEDIES.get(code, "")).lstrip()
    assert own.startswith(entry["detail"])
    assert ("operator" in own.removeprefix(entry["detail"])) == (entry["http"] >= 500)
    is_refused_token = entry["http"] in (401, 403)
    assert (failure.status == ExitStatus.NOT_ALLOWED) == is_refused_token
    error: dict[str, Any] = failure.as_json()
    assert (error["code"], error["ray_id"], error["remedy"]) == (code, RAY, remedy)


def test_failure_classes_have_codes_that_the_reference_explains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in pkgutil.iter_modules(pyservice_cli.__path__):
        if module.name != "__main__":
            importlib.import_module(f"pyservice_cli.{module.name}")
    own = set(failure_classes()) - {Refused}
    documented = {code(row[0]): row[1] for row in table_of("reference/cli.md", "failures")}
    assert {kind.code: str(int(kind.status)) for kind in own} == documented
    for kind in own:
        failure = kind.__new__(kind)
        CommandFailed.__init__(failure, "It is so.")
        sentence, remedy = printed(failure, capsys)
        assert sentence == f"pyservice: {kind.code}: It is so."
        assert remedy.endswith(".")


def test_problems_come_before_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    failure = InputInvalid("It is so.", "Do this.", [Problem("a.b", "is wrong")])
    assert printed(failure, capsys) == [
        "  a.b: is wrong",
        "pyservice: INPUT_INVALID: It is so.",
        "Do this.",
    ]


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_game_before_its_first_deployment(command: Command) -> None:
    command("init")
    for words in ("status", "versions", "rollback", "play", "logs", "why", "list lobbies"):
        ended = command(*words.split())
        assert ended.status == ExitStatus.REFUSED
        sentence, remedy = ended.errors.splitlines()
        assert sentence == "pyservice: GAME_NOT_FOUND: The game does not exist."
        assert remedy.startswith("Before the first deployment, run `pyservice deploy`.")
