"""Uploads of the game servers in `tests/programs`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.upload_files import tar
from tests.support.waiting import PATIENCE_S

FOLDER: Final = Path(__file__).resolve().parents[1] / "programs"
PYTHON_PATH: Final = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
SETTINGS: Final[dict[str, Any]] = {
    "shared_paths": [sys.base_prefix],
    "cpu_millicores": 64_000,
    "memory_mb": 64_000,
}
Cloud = Callable[[str, str, Any], Any]


def server_archive(*command: str, **files: bytes) -> bytes:
    words = command or ("python3", "-S", "server.py")
    manifest = {"command": words, "env": {"PATH": PYTHON_PATH}}
    content = {
        "server.json": json.dumps(manifest).encode(),
        "server.py": (FOLDER / "server.py").read_bytes(),
    }
    return tar({**content, **files})


def upload_build(cloud: Cloud, game: str, archive: bytes, name: str = "server", **form: Any) -> str:
    digest = hashlib.sha256(archive).hexdigest()
    image = {"path": "server.tar", "content_length": len(archive), "sha256": digest}
    response = cloud(
        "POST", f"/cloud/games/{game}/builds", {"display_name": name, "image_file": image, **form}
    )
    httpx.put(
        response["image_presigned_request"]["url"], content=archive, timeout=PATIENCE_S
    ).raise_for_status()
    cloud("POST", f"/cloud/uploads/{response['upload_id']}/complete", {})
    return str(response["build_id"])
