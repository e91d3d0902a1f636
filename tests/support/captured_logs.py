from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Literal

import structlog

from pyservice.observability.logging import configure_logging


@contextlib.contextmanager
def logged(
    level: str = "info", format: Literal["json", "console"] = "json"
) -> Iterator[io.StringIO]:
    """Yields the log output within the block, and restores the log configuration of the tests
    afterwards.
    """
    root = logging.getLogger()
    before, structlog_before = (root.handlers[:], root.level), structlog.get_config()
    stream = io.StringIO()
    configure_logging(level=level, format=format, stream=stream)
    # A cached logger would keep this configuration for all later tests.
    structlog.configure(cache_logger_on_first_use=False)
    try:
        yield stream
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        structlog.configure(**structlog_before)
