"""Reasons why a command fails, with their exit statuses."""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final


class ExitStatus(enum.IntEnum):
    """Exit status of a command. 2 is a wrong option or argument, 130 is Ctrl-C."""

    DONE = 0
    REFUSED = 1
    """The service refused a request, or a step failed."""
    USAGE = 2
    INPUT_INVALID = 3
    """`hosting.toml`, or a file of the game, has problems. Nothing was changed."""
    UNREACHABLE = 4
    """No service, or another server, answers at the address, or it did not answer in time."""
    NOT_ALLOWED = 5
    """There is no token, or the service does not accept it."""
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of the input. `place` is a path such as `matchmaker.max_players`, or empty."""

    place: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence}" if self.place else self.sentence


class CommandFailed(Exception):
    """A command cannot go on. The message is a sentence, and `remedy` says what to do next."""

    status = ExitStatus.REFUSED
    code = "COMMAND_FAILED"
    default_remedy = "Run the same command again when the cause is gone."

    def __init__(self, sentence: str, remedy: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy or self.default_remedy
        self.problems = tuple(problems)

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "message": self.sentence,
            "remedy": self.remedy,
            "problems": [{"place": one.place, "message": one.sentence} for one in self.problems],
        }


class UsageWrong(CommandFailed):
    """An option or argument is wrong."""

    status = ExitStatus.USAGE
    code = "USAGE_INVALID"

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, "`pyservice COMMAND --help` lists the options and arguments.")


class InputInvalid(CommandFailed):
    status = ExitStatus.INPUT_INVALID
    code = "INPUT_INVALID"
    default_remedy = "Correct this, then run the same command again."


class Unreachable(CommandFailed):
    status = ExitStatus.UNREACHABLE
    code = "SERVICE_UNREACHABLE"
    default_remedy = "Check the address and your network."


class OtherService(CommandFailed):
    """Another server answers at the address."""

    status = ExitStatus.UNREACHABLE
    code = "SERVICE_NOT_FOUND"
    default_remedy = "Check the address of the service."


class NotLoggedIn(CommandFailed):
    status = ExitStatus.NOT_ALLOWED
    code = "NOT_LOGGED_IN"
    default_remedy = "Run `pyservice login URL`."


class DiskFull(CommandFailed):
    code = "DISK_FULL"

    def __init__(self, place: str, needed: str = "") -> None:
        super().__init__(
            f"There is no space left on the disk of {place}.{needed and f' {needed}'}",
            "Free space, then run the same command again.",
        )


@contextmanager
def writing_to(place: Path, needed: str = "") -> Iterator[None]:
    """Raises DiskFull if the disk of a file or folder gets full. `needed` says for what."""
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(str(place.absolute()), needed) from None


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class Interrupted(CommandFailed):
    status = ExitStatus.INTERRUPTED
    code = "INTERRUPTED"

    def __init__(self) -> None:
        super().__init__("Interrupted.", "Run the same command again to go on.")


class ReadTimedOut(Unreachable):
    """The service has the request, and does not answer in time."""


_FIRST_REMEDIES: Final = {
    "GAME_NOT_FOUND": "Before the first deployment, run `pyservice deploy`.",
}
"""Remedies that help more often than the `detail` of the service, by the code of the error."""
_COMMANDS: Final = {
    "NAMESPACE_NOT_FOUND": "`pyservice list namespaces` prints those of the game.",
    "VERSION_NOT_FOUND": "`pyservice list versions` prints those of the game.",
    "BUILD_NOT_FOUND": "`pyservice list builds` prints those of the game.",
    "SITE_NOT_FOUND": "`pyservice list sites` prints those of the game.",
    "GROUP_NOT_FOUND": "`pyservice list groups` prints those of the token.",
    "TOKEN_NOT_FOUND": "`pyservice list tokens` prints those of the namespace.",
    "SERVER_NOT_FOUND": "`pyservice list servers` prints those of the namespace.",
    "STORAGE_FULL": "It is the disk of the service. When it has space, run the same command again.",
    "UPLOAD_TOO_LARGE": "List files that the game does not need in .gitignore, or in `exclude` of hosting.toml.",
    "MATCHMAKER_LOBBY_NOT_FOUND": "`pyservice list lobbies` prints those of the namespace.",
}
"""Commands that help after an error of the service, by its code."""


class Refused(CommandFailed):
    """The service answered a request with an error. Its `detail` is part of the remedy."""

    def __init__(
        self,
        http_status: int,
        code: str,
        title: str,
        detail: str,
        *,
        problems: Sequence[Problem] = (),
        ray_id: str = "",
    ) -> None:
        remedies = [_FIRST_REMEDIES.get(code, ""), detail, _COMMANDS.get(code, "")]
        if http_status in (401, 403):
            self.status = ExitStatus.NOT_ALLOWED
            remedies.append("`pyservice login` stores a token that covers this game.")
        elif http_status >= 500 and ray_id:
            remedies.append(f"Give the ray id {ray_id} to the operator if the error stays.")
        remedy = " ".join(one for one in remedies if one)
        super().__init__(f"{title.removesuffix('.')}.", remedy, problems)
        self.http_status = http_status
        self.code = code
        self.ray_id = ray_id

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "ray_id": self.ray_id}
