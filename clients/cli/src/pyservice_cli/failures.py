"""Reasons why a command fails, with their exit statuses."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


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

    def __init__(self, sentence: str, remedy: str = "", problems: Sequence[Problem] = ()) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
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


class Unreachable(CommandFailed):
    status = ExitStatus.UNREACHABLE
    code = "SERVICE_UNREACHABLE"


class OtherService(CommandFailed):
    """Another server answers at the address."""

    status = ExitStatus.UNREACHABLE
    code = "SERVICE_NOT_FOUND"


class NotLoggedIn(CommandFailed):
    status = ExitStatus.NOT_ALLOWED
    code = "NOT_LOGGED_IN"


class Interrupted(CommandFailed):
    status = ExitStatus.INTERRUPTED
    code = "INTERRUPTED"

    def __init__(self) -> None:
        super().__init__("Interrupted.", "Run the same command again to go on.")


class Refused(CommandFailed):
    """The service answered a request with an error."""

    def __init__(
        self,
        http_status: int,
        code: str,
        sentence: str,
        *,
        problems: Sequence[Problem] = (),
        ray_id: str = "",
    ) -> None:
        super().__init__(f"{code}: {sentence}", problems=problems)
        self.http_status = http_status
        self.code = code
        self.ray_id = ray_id
        if http_status in (401, 403):
            self.status = ExitStatus.NOT_ALLOWED
            self.remedy = "Run `pyservice login` with a token that covers this game."
        elif ray_id:
            self.remedy = f"Give the ray id {ray_id} to the operator if this is unexpected."

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "ray_id": self.ray_id}
