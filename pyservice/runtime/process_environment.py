"""Environment variables and arguments of a game server's process. Does no I/O.

Variables of the request for a run override those of the build. Variables of the service override
both. `$(NAME)` in an argument is replaced by the variable if it exists. `$$(NAME)` stands for the
text `$(NAME)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

WORD_BYTES_MAX: Final = (128 << 10) - 1
"""Linux limit of one argument, or of one variable with its name."""
ALL_BYTES_MAX: Final = 2 << 20
"""Linux limit of all arguments and variables, with a terminator and a pointer for each."""

USER: Final = "server"
"""Name of a game server's user in `/etc/passwd`, which the keeper or the image has."""

BIND_VARIABLE: Final = "HOSTING_BIND_ADDRESS"
"""Variable with the address that a game server binds."""
ALL_ADDRESSES: Final = "0.0.0.0"
BACKEND_ADDRESS: Final = "127.0.0.1"
"""Address at which edge-guard of a single machine reaches game servers."""

_EACH_BYTES: Final = 1 + 8
_SHOWN_MAX: Final = 64
_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_]*)\)")


class ProcessPort(NamedTuple):
    """Port number or port range that a process binds.

    If `is_direct`, players reach the port without the port forwarder.
    """

    number: int = 0
    first: int = 0
    last: int = 0
    is_direct: bool = False


def default_variables(scratch: str) -> dict[str, str]:
    """Returns the variables of each program, except `PATH`. A build can change them."""
    user = dict.fromkeys(("USER", "LOGNAME"), USER)
    return {"HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", **user}


def port_variables(ports: Mapping[str, ProcessPort]) -> dict[str, str]:
    """Returns the environment variables that tell a process its ports.

    A port is `PORT_<NAME>`, a range is `PORT_RANGE_MIN_<NAME>` and `PORT_RANGE_MAX_<NAME>`. If
    there is only one port, it is also `PORT`.
    """
    variables: dict[str, str] = {}
    for name, port in sorted(ports.items()):
        label = name.upper().replace("-", "_")
        if port.number:
            variables[f"PORT_{label}"] = str(port.number)
        else:
            variables[f"PORT_RANGE_MIN_{label}"] = str(port.first)
            variables[f"PORT_RANGE_MAX_{label}"] = str(port.last)
    if len(ports) == 1:
        [port] = ports.values()
        if port.number:
            variables["PORT"] = str(port.number)
    return variables


def merge_variables(
    *sources: Mapping[str, str], aliases: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Merges environment variables. Later sources override earlier ones.

    `aliases` maps additional names to names of variables in the last source. An additional name
    overrides the earlier sources, but not the last one.
    """
    variables: dict[str, str] = {}
    for source in sources:
        variables |= source
    last = sources[-1] if sources else {}
    for alias, name in (aliases or {}).items():
        if name in last and alias not in last:
            variables[alias] = last[name]
    return variables


def service_variables(own: Mapping[str, str], ports: Mapping[str, ProcessPort]) -> dict[str, str]:
    """Returns all variables of the service for a process on a single machine.

    `own` are those of the run. Players reach ports of the host network without edge-guard.
    """
    is_direct = any(port.is_direct for port in ports.values())
    address = ALL_ADDRESSES if is_direct else BACKEND_ADDRESS
    return {**own, **port_variables(ports), BIND_VARIABLE: address}


class EnvironmentTooLong(Exception):
    """The variables or arguments exceed a Linux limit. The message is a sentence for the developer."""


def expand_references(words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Returns the arguments with each `$(NAME)` replaced by its variable, without recursion.

    Raises EnvironmentTooLong if the arguments or variables are too long.
    """
    total_bytes = 0
    for name, value in variables.items():
        count = _bytes(name) + 1 + _bytes(value)
        if count > WORD_BYTES_MAX:
            raise _too_long(
                f"The variable {_shorten(name)}", "put its value into a file of the build"
            )
        total_bytes = _add_word(total_bytes, count)
    arguments = []
    for index, word in enumerate(words):
        expanded = _expand(word, variables, index)
        total_bytes = _add_word(total_bytes, _bytes(expanded))
        arguments.append(expanded)
    return arguments


def _expand(word: str, variables: Mapping[str, str], index: int) -> str:
    parts: list[str] = []
    count = at = 0

    def add(part: str) -> None:
        nonlocal count
        count += _bytes(part)
        if count > WORD_BYTES_MAX:
            what = f"Argument {index}" if index else "The program's name"
            raise _too_long(
                f"{what}, with its variables expanded,",
                "let the program read the variables itself, or put the text into a file of the build",
            )
        parts.append(part)

    for match in _REFERENCE.finditer(word):
        escape, name = match.groups()
        add(word[at : match.start()])
        add(f"$({name})" if escape else variables.get(name, match[0]))
        at = match.end()
    add(word[at:])
    return "".join(parts)


def _add_word(total_bytes: int, count: int) -> int:
    total_bytes += count + _EACH_BYTES
    if total_bytes > ALL_BYTES_MAX:
        raise EnvironmentTooLong(
            f"All arguments and variables together are longer than {ALL_BYTES_MAX} bytes, the maximum of Linux: "
            "put long values into a file of the build."
        )
    return total_bytes


def _too_long(what: str, remedy: str) -> EnvironmentTooLong:
    return EnvironmentTooLong(
        f"{what} is longer than {WORD_BYTES_MAX} bytes, the maximum of Linux: {remedy}."
    )


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _shorten(name: str) -> str:
    return name if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]}…"
