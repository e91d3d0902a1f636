"""Signals that end a command: Ctrl-C, SIGTERM, and the end of the terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyservice_cli.failures import Interrupted

SIGNALS: Final = (
    (signal.SIGINT, signal.SIGTERM)
    if sys.platform == "win32"
    else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
)


def raise_on_signals() -> None:
    """Lets each of the signals raise Interrupted, so that a command ends what it has started.

    SIGHUP stays ignored under `nohup`.
    """
    for number in SIGNALS:
        if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    raise Interrupted


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays the signals until the end of the block.

    So a Ctrl-C loses no process that is just starting, and a second one leaves nothing behind.
    Raises Interrupted after the block if one has arrived.
    """
    arrived: list[int] = []

    def note(number: int, _frame: object) -> None:
        arrived.append(number)

    handled = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise Interrupted
