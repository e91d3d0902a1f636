"""Large requests are read without the garbage collector: it would go through all objects of a request
again and again while they are made, none of which is garbage, and take ten times as long as reading.

They are freed when nobody has them any more, as all objects are; what is in cycles waits a little.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LARGE_BYTES: Final = 64 * 1024
"""Of text. What has less makes too few objects to matter."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected within. May be within itself."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
