"""Output of commands: lines and progress for people, or one JSON object on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyservice_cli.failures import CommandFailed


class Terminal:
    """Prints results to standard output and progress to standard error.

    With `is_json`, standard output has only the JSON object of `finish` or `fail`.
    """

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json

    def say(self, line: str) -> None:
        """Prints a line for people."""
        print(line, file=sys.stderr if self.is_json else sys.stdout, flush=True)

    def finish(self, result: Mapping[str, object], *lines: str) -> None:
        """Prints the result of the command."""
        if self.is_json:
            print(json.dumps(result, indent=1), flush=True)
        else:
            for line in lines:
                print(line, flush=True)

    def fail(self, failure: CommandFailed) -> None:
        for problem in failure.problems:
            print(f"  {problem}", file=sys.stderr)
        print(f"pyservice: {failure.sentence}", file=sys.stderr)
        if failure.remedy:
            print(failure.remedy, file=sys.stderr)
        if self.is_json:
            print(json.dumps({"error": failure.as_json()}, indent=1), flush=True)

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
