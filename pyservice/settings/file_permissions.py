"""Check of the permissions of a configuration file with secrets."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pyservice.settings.model import PREFIX

_READABLE: Final = stat.S_IRGRP | stat.S_IROTH


def readable_secrets(
    config_file: Path | None, environ: Mapping[str, str] | None = None
) -> str | None:
    """Returns a warning if the file has a password or key, and other users can read it.

    Without `config_file`, the environment variable `PYSERVICE_CONFIG` names the file.
    """
    named = (os.environ if environ is None else environ).get(f"{PREFIX}CONFIG")
    path = config_file or (Path(named) if named else None)
    if path is None:
        return None
    try:
        if not path.stat().st_mode & _READABLE:
            return None
        names = list(_secrets(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        # `load` reports a file that cannot be read.
        return None
    if not names:
        return None
    return f"{path} has secrets ({', '.join(names)}), and other users can read it: chmod 600 {path}"


def _secrets(values: Mapping[str, Any]) -> Iterator[str]:
    if _has_password(str(values.get("database_url", ""))):
        yield "database_url"
    s3 = values.get("s3")
    if isinstance(s3, Mapping) and s3.get("secret_access_key"):
        yield "s3.secret_access_key"


def _has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return bool(parts.password) or "password" in parse_qs(parts.query)
