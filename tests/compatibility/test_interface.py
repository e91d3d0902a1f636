"""The interface is the one of the stored release, except where the changelog says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.interface_list import (
    current_openapi,
    interface,
    metric_lines,
    stored_interface,
    stored_openapi,
)
from tests.support.doc_pages import families_of, metrics_of_all
from tests.support.full_service import FullService, running

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def is_announced(line: str) -> bool:
    """Whether the changelog names the subject of the line."""
    return f"`{line.split()[1]}`" in CHANGELOG.read_text()


def incompatible(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yields the places where a client of the old document meets something else in the new one."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name in new:
                yield from incompatible(value, new[name], f"{path}/{name}")
            else:
                yield f"{path}/{name} is gone"
        if "required" in new and "required" not in old:
            yield f"{path}/required is new"
    elif isinstance(old, list) and isinstance(new, list):
        if path.endswith("/required") and old != new:
            yield f"{path} changed"
        for number, one in enumerate(old):
            if not any(not list(incompatible(one, other)) for other in new):
                yield f"{path}/{number} is gone"
    elif old != new:
        yield f"{path} was {old!r} and is {new!r}"


def test_errors_rpcs_settings_and_commands_change_only_as_the_changelog_says() -> None:
    stored = {line for line in stored_interface() if not line.startswith("metric ")}
    changed = sorted(stored ^ interface())
    assert [line for line in changed if not is_announced(line)] == []


@pytest.mark.full
def test_metrics_change_only_as_the_changelog_says(tmp_path: Path) -> None:
    stored = {line for line in stored_interface() if line.startswith("metric ")}
    with running(FullService(tmp_path)) as service:
        current = metric_lines(
            families_of(metrics_of_all(f"http://{service.said['metrics']}/metrics"))
        )
    changed = sorted(stored ^ current)
    assert [line for line in changed if not is_announced(line)] == []


def test_client_of_stored_openapi_document_still_works() -> None:
    assert list(incompatible(stored_openapi(), current_openapi())) == []


def test_removed_and_newly_required_members_are_incompatible() -> None:
    old: Any = {
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    assert list(incompatible(old, {**old, "additional": 1})) == []
    assert list(incompatible(old, {**old, "required": ["a", "b"]}))
    assert list(incompatible(old, {**old, "properties": {"a": {"type": "string"}}}))
    assert list(incompatible(old, {**old, "properties": {**old["properties"], "b": {}}}))
