"""Stop signals during a start, blocked until a handler is installed.

Without this, a signal would end the process without an exit status of its own. This module is
loaded first and imports nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

_HELD: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXPLAINS: Final = ("-h", "--help")


def is_serve(words: Sequence[str]) -> bool:
    """Whether the command line starts a service."""
    return list(words[:1]) == ["serve"] and not any(word in _EXPLAINS for word in words)


def hold(words: Sequence[str]) -> None:
    """Blocks the signals if the command line starts a service. Children inherit the block and must
    call `release`.
    """
    if is_serve(words):
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release() -> None:
    """Delivers the blocked signals."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
