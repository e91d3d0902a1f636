"""Variables and arguments of a game server's process (decisions 5.10, 6.5). Pure.

Three sources, each over the one before: the build's own, the configuration's, ours. `$(NAME)` in command and arguments
is replaced by the variable; a name that there is not stays as it is, and `$$(NAME)` is the text `$(NAME)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_]*)\)")


class ProcessPort(NamedTuple):
    """What a process binds: one number, or those of a range. `is_direct`: players reach it without edge-guard."""

    number: int = 0
    first: int = 0
    last: int = 0
    is_direct: bool = False


def port_variables(ports: Mapping[str, ProcessPort]) -> dict[str, str]:
    """`PORT_<NAME>`, or `PORT_RANGE_MIN_<NAME>` and `PORT_RANGE_MAX_<NAME>`; `PORT` when there is exactly one port, and
    it is one number.
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


def environment(
    *sources: Mapping[str, str], aliases: Mapping[str, str] | None = None
) -> dict[str, str]:
    """All variables, later sources over earlier ones. `aliases`: their name to ours; one whose value there is not is
    left out, and none takes the place of a variable of ours.
    """
    variables: dict[str, str] = {}
    for source in sources:
        variables |= source
    ours = sources[-1] if sources else {}
    for theirs, name in (aliases or {}).items():
        if name in ours and theirs not in ours:
            variables[theirs] = ours[name]
    return variables


def replaced(words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """Command or arguments with their references filled in, once: what a value brings is not looked at again."""

    def fill(found: re.Match[str]) -> str:
        escape, name = found.groups()
        if escape:
            return f"$({name})"
        return variables.get(name, found[0])

    return [_REFERENCE.sub(fill, word) for word in words]
