"""Files of a site, and their fields in a request."""

from __future__ import annotations

from typing import Any

FILES = {
    "index.html": b"<h1>Arena</h1>",
    "assets/app.js": b"play()",
    "empty.txt": b"",
    "img/ä ö.svg": b"<svg/>",
}


def file_fields(contents: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"path": path, "content_length": len(content)} for path, content in contents.items()]
