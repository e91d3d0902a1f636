"""Programs of Python, Node and Java, which behave on a node as on a single machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.runtime.control_groups import ControlGroups
from tests.placement.story_game import StoryGame
from tests.support.game_placement import GamePlacement
from tests.support.interpreter_programs import (
    MEMORY_MB,
    NODE_GAME,
    PYTHON_GAME,
    PYTHON_LINES,
    check_java_lines,
    check_node_lines,
    java_class,
    needs_java,
    needs_node,
)

pytestmark = pytest.mark.full


@pytest.fixture
def has_memory_limit(placement: GamePlacement, tmp_path: Path) -> bool:
    return placement.name == "kubernetes" or ControlGroups.find(tmp_path).memory is not None


def test_python_has_shared_memory_processes_and_a_user(game: StoryGame) -> None:
    files = {"game.py": PYTHON_GAME.encode()}
    assert game.run_program("python3", "game.py", memory_mb=MEMORY_MB, **files) == PYTHON_LINES


@needs_node
def test_node_has_a_user_and_sees_its_memory_limit(game: StoryGame, has_memory_limit: bool) -> None:
    lines = game.run_program("node", "-e", NODE_GAME, memory_mb=MEMORY_MB)
    check_node_lines(lines, has_memory_limit=has_memory_limit)


@needs_java
def test_java_has_a_user_and_sees_its_memory_limit(
    game: StoryGame, has_memory_limit: bool, tmp_path: Path
) -> None:
    files = {"Game.class": java_class(tmp_path)}
    lines = game.run_program("java", "Game", memory_mb=MEMORY_MB, **files)
    check_java_lines(lines, has_memory_limit=has_memory_limit)
