"""Signals of a start of `serve`, kept back until there is somebody who handles them: before, they would end the process
in the middle, without an exit status of its own.

The first module of a start; it loads nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXPLAINS: Final = ("-h", "--help")


def is_serve(words: Sequence[str]) -> bool:
    """Whether these words of the command line start a service."""
    return list(words[:1]) == ["serve"] and not any(word in _EXPLAINS for word in words)


def hold(words: Sequence[str]) -> None:
    """From now on they wait, if these words of the command line start a service. Whoever is begun meanwhile inherits
    it, and has to `release` them.
    """
    if is_serve(words):
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Those that came are delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
