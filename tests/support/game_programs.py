"""Uploads of the game servers in `tests/programs`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.service_process import START_TIMEOUT_S
from tests.support.upload_files import tar

FOLDER: Final = Path(__file__).resolve().parents[1] / "programs"
PYTHON_PATH: Final = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
SETTINGS: Final[dict[str, Any]] = {
    "shared_paths": [sys.base_prefix],
    "cpu_millicores": 64_000,
    "memory_mb": 64_000,
}
Cloud = Callable[[str, str, Any], Any]


def server_archive(*command: str, **files: bytes) -> bytes:
    return program_archive(command or ("python3", "-S", "server.py"), files)


def program_archive(command: Sequence[str], files: Mapping[str, bytes], **manifest: Any) -> bytes:
    """Returns an archive with the program `server.py` and more files. `manifest`: more fields."""
    manifest = {"command": command, "env": {"PATH": PYTHON_PATH}, **manifest}
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
        response["image_presigned_request"]["url"], content=archive, timeout=START_TIMEOUT_S
    ).raise_for_status()
    cloud("POST", f"/cloud/uploads/{response['upload_id']}/complete", {})
    return str(response["build_id"])
