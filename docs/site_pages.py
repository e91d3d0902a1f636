"""Hook of mkdocs: shows CONTRIBUTING.md and CHANGELOG.md of the repository as pages of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for page, source in _PAGES.items():
        text = _LINK.sub(_site_link, (_ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def _site_link(found: re.Match[str]) -> str:
    """Returns the link relative to the folder docs, or its text if the site lacks the target."""
    text, target, anchor = found.groups()
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')}{anchor or ''})"
    return str(text)
