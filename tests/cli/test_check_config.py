"""`pyservice check-config` prints every problem of settings and feed, exits with 1 and starts
nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.dataplane.configurations import OTHER_NAMESPACE_ID, document, version


def _check(
    *words: str, environ: dict[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYSERVICE_")}
    done = subprocess.run(
        [sys.executable, "-m", "pyservice", "check-config", *words],
        env={**clean, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def test_valid_settings_are_ok(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    feed.write_text(json.dumps({"namespaces": [document()]}))
    assert _check("--feed", str(feed), "--data-dir", str(tmp_path / "data")) == (0, "ok\n", "")
    assert not (tmp_path / "data").exists()


def test_every_settings_problem_is_printed(tmp_path: Path) -> None:
    config = tmp_path / "service.toml"
    config.write_text("nonsense = 1\nlame_duck_ms = -1\n")
    code, output, errors = _check(
        "--config",
        str(config),
        "--http",
        "nowhere",
        "--set",
        "journal.segment_bytes=1",
        environ={"PYSERVICE_GRPC": "x", "PYSERVICE_UNKNOWN": "1"},
    )
    assert code == 1
    assert output == ""
    for name in ("nonsense", "lame_duck_ms", "http", "journal.segment_bytes", "grpc", "UNKNOWN"):
        assert name in errors
    assert len(errors.splitlines()) == 6


def test_every_feed_problem_is_printed(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    feed.write_text(
        json.dumps(
            {
                "namespaces": [
                    document(versions=[version(duel={"max_players": 300})]),
                    document(namespace_id=OTHER_NAMESPACE_ID, name_id="-"),
                ]
            }
        )
    )
    code, _, errors = _check("--feed", str(feed))
    assert code == 1
    assert "arena/prod: versions.0.matchmaker.game_modes.duel.max_players" in errors
    assert "arena/-: name_id" in errors


def test_unknown_flag_is_reported() -> None:
    code, _, errors = _check("--set", "nonsense=1", "--set", "x.y=2")
    assert code == 1
    assert "nonsense: is not a setting (flag)" in errors
    assert "x: is not a setting (flag)" in errors


def test_set_flag_without_a_value_is_reported() -> None:
    code, _, errors = _check("--set", "nonsense")
    assert code == 1
    assert "must be NAME=VALUE" in errors


def test_settings_problems_do_not_hide_feed_problems(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    wrong = version(duel={"max_players": 300, "regions": {"north": {}}})
    feed.write_text(json.dumps({"namespaces": [document(versions=[wrong])]}))
    code, _, errors = _check("--feed", str(feed), "--set", "lame_duck_ms=x")
    assert code == 1
    for name in ("lame_duck_ms", "duel.max_players", "duel.regions.north"):
        assert name in errors
    assert len(errors.splitlines()) == 3
    # The limits of the operator are unknown here, so no problem names them.
    code, _, errors = _check(
        *("--feed", str(feed), "--set", 'regions=[{"name_id": "A"}]'),
        *("--set", "player_limit_max=x"),
    )
    assert code == 1
    assert "duel" not in errors
    code, _, errors = _check("--feed", str(tmp_path / "none.json"), "--http", "x")
    assert len(errors.splitlines()) == 2


def test_duplicate_namespace_is_reported(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    feed.write_text(json.dumps({"namespaces": [document(), document(display_name="Other")]}))
    code, _, errors = _check("--feed", str(feed))
    assert code == 1
    assert "namespaces.1.namespace_id: is there more than once" in errors


def test_too_deeply_nested_feed_is_reported(tmp_path: Path) -> None:
    feed = tmp_path / "feed.json"
    feed.write_text('{"namespaces": ' + "[" * 200_000)
    code, _, errors = _check("--feed", str(feed))
    assert code == 1
    assert "nested too deeply" in errors
    assert "Traceback" not in errors


def test_cdn_listener_needs_its_own_origin() -> None:
    code, _, errors = _check("--cdn", "127.0.0.1:8080")
    assert (code, "cdn: 127.0.0.1:8080 is where http listens" in errors) == (1, True)
    code, _, errors = _check("--cdn", "nowhere")
    assert (code, "cdn: must be host:port" in errors) == (1, True)
