from __future__ import annotations

import re
from typing import Final

from pyservice.schema.methods import METHODS
from tests.support.killable_plane import Plane

_MATCHMAKER: Final = {
    method.slug for name, method in METHODS.items() if name.startswith("hosting.v1.Matchmaker.")
}

_CREATION: Final = {
    ("attach", "operation"),
    ("detach", "operation"),
    ("find", "new_lobby"),
    ("find", "starting_lobby"),
    ("ready", "served_ports"),
}


async def answers_of_front(plane: Plane, *operations: str, door: str = "http") -> int:
    """Returns the number of requests that the front answered without Python."""
    count = 0.0
    for operation in operations:
        labels = {"operation": operation, "door": door}
        count += await plane.metric("hosting_request_duration_seconds_count", **labels)
        count -= await plane.metric("hosting_front_passed_total", **labels)
    return int(count)


def passed_besides_creation(metrics: str) -> set[tuple[str, str]]:
    """Returns operation and reason of requests of the matchmaker that were passed on to Python.

    Without those that create, attach or detach a lobby. `metrics` is the page of the metrics.
    """
    passed = set()
    for labels, count in re.findall(r"^hosting_front_passed_total\{(.*)\} (.*)$", metrics, re.M):
        values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if float(count) and values["operation"] in _MATCHMAKER:
            passed.add((values["operation"], values["reason"]))
    return passed - _CREATION
