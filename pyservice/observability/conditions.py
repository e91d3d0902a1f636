"""What a process says of itself when somebody asks whether it is ready. Who asks, and how it is shown,
is the probes'; what holds is measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping


class Note(str):
    """What an operator may want to know besides: it neither holds nor is it wrong."""

    __slots__ = ()


Conditions = Mapping[str, str | None]
"""By name: None when it holds, a `Note` when there is only something to tell, else what is wrong."""


def wrong(conditions: Conditions) -> dict[str, str]:
    """What makes the process not ready, by name."""
    return {
        name: said
        for name, said in conditions.items()
        if said is not None and not isinstance(said, Note)
    }
