"""`scripts/check_prose.py`: it reads every kind of file, and whole sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
LONG: Final = "one two three four five six seven eight nine; " * 3
SHORT: Final = "one two three four five six seven eight nine. " * 3


def check(*words: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_prose.py", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("page.md", "{}"),
        ("page.html", "<p>{}</p>"),
        ("module.py", "# {}"),
        ("module.rs", "// {}"),
        ("shim.c", "// {}"),
        ("Makefile", "build: ## {}"),
        ("run", "# {}"),
        ("workflow.yml", "# {}"),
        ("packages.in", "# {}"),
    ],
)
def test_long_sentence_fails_in_every_kind_of_file(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / name
    path.write_text(form.format(SHORT) + "\n")
    assert check(path).returncode == 0
    path.write_text(form.format(LONG) + "\n")
    result = check(path)
    assert (result.returncode, "a sentence of 27 words" in result.stdout) == (1, True)


def test_semicolons_separate_the_items_of_a_table_cell(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"| cell | {LONG}|\n")
    assert check(path).returncode == 0


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("page.md", "A crowd of players.", "crowd"),
        ("test_module.py", "def test_nobody_waits() -> None: ...", "nobody"),
        ("module.rs", "fn deaf_server() {}", "deaf"),
        ("module.py", 'ERROR = "the household is full"', "household"),
        ("errors.toml", 'detail = "Ask the stranger."', "stranger"),
    ],
)
def test_banned_word_is_found(tmp_path: Path, name: str, content: str, word: str) -> None:
    path = tmp_path / name
    path.write_text(content + "\n")
    assert f"use a standard term instead of {word!r}" in check(path).stdout


def test_flag_or_file_name_may_have_a_banned_word(tmp_path: Path) -> None:
    path = tmp_path / "module.rs"
    path.write_text('const USAGE: &str = "run --nursery, with the lock .nursery";\n')
    assert check(path).returncode == 0


def test_text_of_an_error_has_short_sentences(tmp_path: Path) -> None:
    path = tmp_path / "errors.toml"
    path.write_text(f'detail = "{LONG}"\n')
    assert "a sentence of 27 words" in check(path).stdout


def test_subject_of_each_commit_in_a_range_is_checked(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    for subject in ("Bad subject", "area: add a file", "area: add two; files"):
        command = [*git, "commit", "-q", "--allow-empty", "-m", subject]
        subprocess.run(command, cwd=tmp_path, check=True)
    assert check("--commits", "HEAD~2..HEAD~1", folder=tmp_path).returncode == 0
    result = check("--commits", "HEAD~2..HEAD", folder=tmp_path)
    assert (result.returncode, result.stdout) == (
        1,
        "commit subject 'area: add two; files': several topics\n",
    )
