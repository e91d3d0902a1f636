"""Blocking of stop signals during a start, until their handlers are installed.

An unblocked signal would end the process before the process can choose its exit status. This module
is loaded first and imports almost nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXPLAINS: Final = ("-h", "--help")


def is_serve(words: Sequence[str]) -> bool:
    return list(words[:1]) == ["serve"] and not any(word in _EXPLAINS for word in words)


def block(words: Sequence[str]) -> None:
    """Blocks the stop signals if the command line `words` starts a service.

    Child processes inherit the blocked signals and must call `unblock`.
    """
    if is_serve(words):
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
