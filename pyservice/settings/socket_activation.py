"""Descriptors of listening sockets that systemd passes to the service (`sd_listen_fds`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_FIRST: Final = 3
_MOST: Final = 1_000


def passed_descriptors(environ: Mapping[str, str] | None = None, pid: int | None = None) -> range:
    """Returns the descriptors that systemd passed to this process. Raises ValueError.

    Variables for another process count as not set, because children inherit them.
    """
    environ = os.environ if environ is None else environ
    if "LISTEN_PID" not in environ or "LISTEN_FDS" not in environ:
        return range(0)
    if _number(environ, "LISTEN_PID") != (os.getpid() if pid is None else pid):
        return range(0)
    return range(_FIRST, _FIRST + _number(environ, "LISTEN_FDS"))


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    is_number = text.isascii() and text.isdigit()
    if not is_number or (name == "LISTEN_FDS" and not 0 < int(text) <= _MOST):
        raise ValueError(
            f"{name}={text}: is no value of systemd; let a socket unit set it, or unset it"
        )
    return int(text)
