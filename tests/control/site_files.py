"""Files of a site, and their fields in a request."""

from __future__ import annotations

from typing import Any

from tests.support.full_service import Developer
from tests.support.upload_files import put_all

FILES = {
    "index.html": b"<h1>Arena</h1>",
    "assets/app.js": b"play()",
    "empty.txt": b"",
    "img/ä ö.svg": b"<svg/>",
}


def file_fields(contents: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"path": path, "content_length": len(content)} for path, content in contents.items()]


async def complete_site(developer: Developer, game_id: str) -> str:
    """Uploads a site with `FILES`, and returns its id."""
    response = await developer.good(
        "create_site", game_id=game_id, display_name="1", files=file_fields(FILES)
    )
    await put_all(response["presigned_requests"], FILES)
    await developer.good("complete_upload", upload_id=response["upload_id"])
    return str(response["site_id"])
