from __future__ import annotations

from tests.support.killable_plane import Plane


async def answers_of_front(plane: Plane, *operations: str, door: str = "http") -> int:
    """Returns the number of requests that the front answered without Python."""
    count = 0.0
    for operation in operations:
        labels = {"operation": operation, "door": door}
        count += await plane.metric("hosting_request_duration_seconds_count", **labels)
        count -= await plane.metric("hosting_front_passed_total", **labels)
    return int(count)
