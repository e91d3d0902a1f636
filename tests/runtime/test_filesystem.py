from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pyservice.runtime.filesystem import is_folder_empty, remove_tree
from tests.runtime.deep_folders import create_deep_folders


def test_deeply_nested_folders_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "scratch"
    create_deep_folders(root)
    with pytest.raises(RecursionError):
        shutil.rmtree(root)
    remove_tree(root)
    assert not root.exists()
    remove_tree(root)


def test_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    target.mkdir()
    (target / "file").write_text("x")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "link").symlink_to(target)
    remove_tree(scratch)
    assert not scratch.exists()
    assert (target / "file").exists()


def test_empty_and_missing_folders_are_empty(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    assert is_folder_empty(folder)
    folder.mkdir()
    assert is_folder_empty(folder)
    (folder / ".hidden").touch()
    assert not is_folder_empty(folder)
    assert not is_folder_empty(folder / ".hidden"), "a file in its place has to go"
