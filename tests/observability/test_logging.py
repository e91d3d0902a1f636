from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pyservice.observability.logging import fingerprint, get_logger, scrub
from tests.support.captured_logs import logged

KINDS = ("cloud", "env", "pub", "dev", "lobby", "player", "link")
# Computed, because the repository must not contain token literals.
TOKENS = {kind: f"{kind}_" + "Ab9-" * 12 for kind in KINDS}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    with logged() as output:
        yield output


def lines(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_line_is_json_with_time_level_and_name(stream: io.StringIO) -> None:
    get_logger("pyservice.test").info("something happened", count=3)
    (line,) = lines(stream)
    assert line["timestamp"].endswith("Z")
    del line["timestamp"]
    assert line == {
        "event": "something happened",
        "level": "info",
        "logger": "pyservice.test",
        "count": 3,
    }


def test_library_logs_have_the_same_format(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("%s connections", 5)
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("5 connections", "warning")


def test_exception_is_logged_with_its_traceback(stream: io.StringIO) -> None:
    try:
        raise ValueError("inside")
    except ValueError:
        get_logger("pyservice.test").exception("failed", ray_id="abc")
    (line,) = lines(stream)
    assert "Traceback" in line["exception"]
    assert "ValueError: inside" in line["exception"]


def test_records_below_the_level_are_dropped() -> None:
    with logged(level="warning") as output:
        get_logger("pyservice.test").info("chatter")
    assert output.getvalue() == ""


def test_terminal_output_is_text() -> None:
    with logged(format="console") as output:
        get_logger("pyservice.test").info("something happened", count=3)
    assert "something happened" in output.getvalue()
    assert not output.getvalue().startswith("{")


@pytest.mark.parametrize("kind", KINDS)
def test_token_never_appears_in_a_log(stream: io.StringIO, kind: str) -> None:
    token = TOKENS[kind]
    log = get_logger("pyservice.test")
    log.info(f"got Bearer {token}", token=token, nested={token: [token, (token, {"t": token})]})
    logging.getLogger("asyncio").error("in a library: %s", token)
    log.info("an object", thing=Exception(token), raw=token.encode())
    try:
        raise RuntimeError(token)
    except RuntimeError:
        log.exception("failed")
    assert token not in stream.getvalue()
    assert len(lines(stream)) == 4
    assert fingerprint(token) in stream.getvalue()


def test_fingerprint_distinguishes_tokens_and_kinds() -> None:
    first, second = TOKENS["pub"], TOKENS["pub"] + "x"
    assert fingerprint(first).startswith("pub#")
    assert fingerprint(first) != fingerprint(second)
    assert fingerprint(first) == fingerprint(first)
    assert fingerprint("anything else").startswith("token#")


@pytest.mark.parametrize(
    "text", ["player_token", "max_players_direct", "lobby_id", "players_connected", "env_x"]
)
def test_names_similar_to_tokens_are_unchanged(text: str) -> None:
    assert scrub(text) == text


UNCAUGHT = """
import sys, threading, warnings
from pyservice.observability.logging import configure_logging, log_uncaught_errors

class Unraisable:
    def __del__(self):
        raise ValueError("in a finalizer")

def fail():
    raise ValueError("in a thread")

configure_logging(format="json")
log_uncaught_errors()
warnings.warn("old name", UserWarning)
Unraisable()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
raise ValueError("in the main thread")
"""


def test_uncaught_errors_and_warnings_are_json() -> None:
    result = subprocess.run(
        [sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout) == (1, "")
    warning, *errors = map(json.loads, result.stderr.splitlines())
    assert "UserWarning: old name" in warning["event"]
    assert [error["event"] for error in errors] == ["uncaught exception"] * 3
    places = ("in a finalizer", "in a thread", "in the main thread")
    assert all(place in error["exception"] for place, error in zip(places, errors, strict=True))
