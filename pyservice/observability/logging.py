"""Logging with structlog, as JSON or console text. Every token is replaced by a fingerprint."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Mapping
from hashlib import blake2b
from types import TracebackType
from typing import Any, Final, Literal, TextIO

# structlog imports rich if it is installed, which adds 0.09 s to a start of 0.85 s. The service never uses it.
_has_rich = "rich" in sys.modules
if not _has_rich:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None makes the import fail
import structlog  # noqa: E402
from structlog.typing import EventDict, Processor  # noqa: E402

if not _has_rich:
    del sys.modules["rich"]

Format = Literal["auto", "json", "console"]

_TOKEN = re.compile(r"\b(?:cloud|env|pub|dev|lobby|player|link)_[A-Za-z0-9_-]{16,}")
_MAX_DEPTH: Final = 6


def fingerprint(token: str) -> str:
    """Returns a text that identifies a token without revealing it: its kind and 48 bits of its
    hash.
    """
    kind = token.partition("_")[0] if _TOKEN.match(token) else "token"
    return f"{kind}#{blake2b(token.encode(), digest_size=6).hexdigest()}"


def scrub(text: str) -> str:
    return _TOKEN.sub(lambda match: fingerprint(match[0]), text)


def _scrub(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_scrub(k, depth + 1): _scrub(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_scrub(item, depth + 1) for item in value]
    return scrub(str(value))


def scrub_tokens(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replaces each token in a log event by its fingerprint.

    It must be the last processor before the renderer, because earlier processors turn exceptions
    into text.
    """
    # Keys with an underscore have objects for structlog's formatter.
    return {key: value if key.startswith("_") else _scrub(value) for key, value in event.items()}


def configure_logging(
    *, level: str = "info", format: Format = "auto", stream: TextIO | None = None
) -> None:
    stream = sys.stderr if stream is None else stream
    is_console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        structlog.processors.UnicodeDecoder(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if is_console
        else structlog.processors.JSONRenderer()
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                scrub_tokens,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True


def log_uncaught_errors() -> None:
    """Sends uncaught exceptions and warnings of Python to the log, until the process ends.

    Python would write them to standard error, between the lines of a JSON log.
    """
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None
) -> None:
    get_logger("service").critical("uncaught exception", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
