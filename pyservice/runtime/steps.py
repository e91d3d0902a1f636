"""Changes of files that belong together, made one after the other in one native call.

A start makes some twenty, beside an event loop that wants the interpreter too: asking for it after each of them costs
more than they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pyservice import _native


class Step(NamedTuple):
    """One change. `folder`: a new one; `group`: one that may be there; `file`: a new one with its content; `put`: into
    one that is there, as the kernel's are; `try`: the same, if it is there and takes it.
    """

    what: Literal["folder", "group", "file", "put", "try"]
    path: Path | str
    mode: int = 0o777
    content: bytes = b""


def make(steps: Sequence[Step]) -> None:
    """Until the first that fails. Raises OSError with its file."""
    _native.change_files(steps)
