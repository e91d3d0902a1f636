"""`pyservice migrate`: an empty database gets its tables, a service that runs is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.storage.migrations import HEAD
from tests.commands import run
from tests.databases import KINDS, Databases
from tests.household import House


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str | None:
    return databases.url(request.param)


def test_it_makes_the_tables_and_repeats_change_nothing(url: str | None, tmp_path: Path) -> None:
    environment = {} if url is None else {"PYSERVICE_DATABASE_URL": url}
    for _ in range(2):
        done = run(tmp_path, "migrate", **environment)
        assert (done.returncode, done.stdout) == (0, f"{HEAD}\n"), done.stderr


def test_it_refuses_while_a_service_uses_the_database(url: str | None, tmp_path: Path) -> None:
    house = House(tmp_path, url)
    try:
        house.start()
        done = run(house.data_dir, "migrate")
        assert (done.returncode, done.stdout) == (1, "")
        assert "in use by process" in done.stderr
    finally:
        house.close()
    assert run(house.data_dir, "migrate", **({"PYSERVICE_DATABASE_URL": url} if url else {})).stdout


def test_a_database_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "migrate", PYSERVICE_DATABASE_URL="mysql://127.0.0.1/x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "postgresql" in done.stderr


def test_without_a_service_the_commands_say_what_to_do(tmp_path: Path) -> None:
    for words in (
        ("group", "list"),
        ("identity", "list"),
        ("token", "create", "--game", "arena"),
        ("token", "create", "--kind", "public", "--namespace", "arena/prod"),
    ):
        done = run(tmp_path, *words)
        assert (done.returncode, done.stdout) == (1, ""), words
        assert "is a service running with --data-dir" in done.stderr
