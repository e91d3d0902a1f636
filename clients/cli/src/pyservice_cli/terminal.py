"""Output of commands: lines and progress for people, or one JSON object on standard output."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pyservice_cli.failures import CommandFailed

STANDARD_ERROR: Final = 2
_LONG_S: Final = 2.0
"""Time after which a wait is announced."""


class Terminal:
    """Prints results to standard output and progress to standard error.

    With `is_json`, standard output has only the JSON object of `finish` or `fail`, or those of `stream`.
    """

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json

    @property
    def program_output(self) -> int | None:
        """Returns the file descriptor for the output of other programs. None is standard output."""
        return STANDARD_ERROR if self.is_json else None

    def say(self, line: str) -> None:
        """Prints a line for people."""
        print(line, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def ask(self, question: str) -> str:
        """Returns the answer of a person, or an empty one at the end of the input.

        The question goes to standard error, because standard output can be a file with the result.
        """
        print(question, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip()

    def finish(self, result: Mapping[str, object], *lines: str) -> None:
        """Prints the result of the command."""
        if self.is_json:
            self.print_json(result)
        else:
            for line in lines:
                print(line, flush=True)

    def print_json(self, content: Mapping[str, object]) -> None:
        print(json.dumps(content, indent=1), flush=True)

    def stream(self, entry: Mapping[str, object], *lines: str) -> None:
        """Prints one of many results: lines for people, or one JSON object on one line."""
        if self.is_json:
            print(json.dumps(entry), flush=True)
        else:
            for line in lines:
                print(line, flush=True)

    def fail(self, failure: CommandFailed) -> None:
        for problem in failure.problems:
            print(f"  {problem}", file=sys.stderr)
        print(f"pyservice: {failure.code}: {failure.sentence}", file=sys.stderr)
        print(failure.remedy, file=sys.stderr)
        if self.is_json:
            # On one line, because a stream of results can end with it.
            self.stream({"error": failure.as_json()})

    @contextmanager
    def waiting(self, line: str) -> Iterator[None]:
        """Prints a line to standard error if the block takes longer than 2 s."""
        timer = threading.Timer(_LONG_S, lambda: print(line, file=sys.stderr, flush=True))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def progress(self, title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        """Shows a progress bar on a terminal. Yields a function that takes further bytes."""
        if not sys.stderr.isatty():
            yield lambda _count: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total_bytes)
            yield lambda count: bar.advance(task, count)


def open_browser(url: str) -> bool:
    """Opens an address in the browser of a desktop, and returns whether that worked."""
    displays = {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    # Loads slowly, and few commands open a browser.
    import webbrowser

    has_desktop = os.name != "posix" or sys.platform == "darwin" or bool(displays)
    return has_desktop and webbrowser.open(url)


def table(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> list[str]:
    """Returns the lines of a table. A column without a value in any row is omitted."""
    if not rows:
        return ["None."]
    used = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    cells = [[name.replace("_", " ") for name in used]]
    cells += [[_cell(row.get(name)) for name in used] for row in rows]
    widths = [max(len(line[index]) for line in cells) for index in range(len(used))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
