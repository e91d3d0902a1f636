"""Signals that end a command: Ctrl-C, SIGTERM, and the end of the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyservice_cli.failures import Interrupted

_SIGNALS: Final = (
    (signal.SIGINT, signal.SIGTERM)
    if sys.platform == "win32"
    else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
)


def raise_on_signals() -> None:
    """Lets each of the signals raise Interrupted, so that a command ends what it has started.

    SIGHUP stays ignored under `nohup`.
    """
    for number in _SIGNALS:
        if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    raise Interrupted


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores the signals, so that a second Ctrl-C leaves nothing behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
