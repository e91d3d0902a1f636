"""The game that the options of a command name. The modules that open it are imported on use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyservice_cli.terminal import Terminal

if TYPE_CHECKING:
    from pyservice_cli.api import Api
    from pyservice_cli.games import Game


@dataclass(frozen=True, slots=True)
class ChosenGame:
    """Values of the options that name a game."""

    folder: Path
    namespace: str | None
    profile: str | None
    terminal: Terminal

    def open(self) -> Game:
        """Reads `hosting.toml` of the folder, and returns its game at the service."""
        from pyservice_cli.games import Game

        return Game.open(self.folder, self.namespace, self.profile)

    def connect(self) -> Api:
        """Returns the service, for commands that need no game."""
        from pyservice_cli.api import Api
        from pyservice_cli.connections import find_connection

        return Api(find_connection(self.profile))
