"""`make run` installs only `requirements/run.lock`: the examples and the Python files of the pages need no more."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from tests.support.doc_pages import blocks_of
from tests.support.tracked_files import ROOT, relative, tracked

OWN: Final = {"examples", "hosting_game", "pyservice", "pyservice_cli"}
DOCS: Final = ROOT / "docs"


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def test_examples_and_pages_import_only_what_make_run_installs() -> None:
    lock = (ROOT / "requirements/run.lock").read_text()
    installed = set(re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==", lock, re.MULTILINE))
    sources = {relative(path): path.read_text() for path in tracked("examples/*.py")}
    for page in ("../README.md", *(str(path.relative_to(DOCS)) for path in tracked("docs/*.md"))):
        for block in blocks_of(page):
            if block.language == "python" and block.file is not None:
                sources[f"{page}: line {block.line}"] = block.text
    providers = metadata.packages_distributions()
    missing = {
        f"{place}: {module}"
        for place, source in sources.items()
        for module in imported(source)
        if module not in sys.stdlib_module_names
        and module not in OWN
        and not {name.lower().replace("_", "-") for name in providers.get(module, ())} & installed
    }
    assert not missing
