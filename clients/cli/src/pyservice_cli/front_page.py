"""Page of `pyservice --help`: the commands by panel.

It looks like the help pages of typer. Typer also loads parsers of Markdown and of program text,
which take half of the time of a page.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

OPTIONS: Final = {
    "--version": "Print the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the installation.",
    "--help, -h": "Show this message and exit.",
}
_OPTIONS_PANEL: Final = "Options"
_OTHER_PANEL: Final = "Commands"


def print_front_page(application: typer.Typer) -> None:
    """Prints the options and commands of an application to standard output."""
    panels: dict[str, dict[str, str]] = {_OPTIONS_PANEL: dict(OPTIONS)}
    for panel, name, help_text in listed_commands(application):
        panels.setdefault(panel, {})[name] = help_text
    console = Console(highlight=False)
    console.print("\n Usage: pyservice [OPTIONS] COMMAND [ARGS]...\n", style="bold")
    console.print(f" {application.info.help}\n")
    width = max(len(name) for rows in panels.values() for name in rows)
    for title, rows in panels.items():
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold cyan", min_width=width)
        table.add_column()
        for name, help_text in rows.items():
            # Without markup, because help texts have brackets.
            table.add_row(Text(name), Text(help_text))
        console.print(Panel(table, title=title, title_align="left", border_style="dim"))


def listed_commands(application: typer.Typer) -> Iterator[tuple[str, str, str]]:
    """Yields panel, name and help of each command and command group, in the order of the page."""
    for command in application.registered_commands:
        function = command.callback
        name = command.name or (function.__name__ if function else "")
        help_text = command.help or inspect.getdoc(function)
        yield _text(command.rich_help_panel, _OTHER_PANEL), name, _summary(help_text)
    for group in application.registered_groups:
        about = group.typer_instance.info.help if group.typer_instance else None
        panel = _text(group.rich_help_panel, _OTHER_PANEL)
        yield panel, _text(group.name, ""), _summary(about)


def _summary(help_text: object) -> str:
    """Returns the first paragraph in one line."""
    return " ".join(_text(help_text, "").partition("\n\n")[0].split())


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) else default
