"""Use of the data plane's memory: reports, additions since then, and refusals."""

from __future__ import annotations

import pytest

from pyservice.control.data_plane_memory import DataPlaneMemory
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2

GROUP, OTHER_GROUP = "group", "other"


def held(group: int, other: int = 0, most: int = 10_000) -> feed_pb2.HeldResponse:
    response = feed_pb2.HeldResponse(total_bytes=group + other, total_bytes_max=most)
    response.group_bytes[GROUP], response.group_bytes[OTHER_GROUP] = group, other
    return response


@pytest.fixture
def memory() -> DataPlaneMemory:
    memory = DataPlaneMemory()
    memory.take(held(1_000))
    return memory


def refusal(memory: DataPlaneMemory, added: int, limit: int) -> tuple[str, str] | None:
    try:
        memory.require(GROUP, added, limit)
    except ServiceError as error:
        return error.metadata["quota"], error.metadata["use"]
    return None


def test_addition_counts_until_an_answer_includes_it(memory: DataPlaneMemory) -> None:
    assert refusal(memory, 100, 1_100) is None
    memory.add(GROUP, "n1", 100)
    assert refusal(memory, 1, 1_100) == ("configuration_bytes", "1100")
    sent = memory.last_addition("n1")
    memory.add(GROUP, "n1", 50)
    memory.add(GROUP, "n2", 30)
    # A report in between includes none of the additions.
    memory.take(held(1_000))
    assert memory.of_group(GROUP) == 1_180
    memory.acknowledge(GROUP, feed_pb2.Applied(group_bytes=1_100, total_bytes=1_100))
    memory.confirm("n1", sent)
    assert memory.of_group(GROUP) == 1_180
    for namespace_id in ("n1", "n2"):
        memory.confirm(namespace_id, memory.last_addition(namespace_id))
    assert memory.of_group(GROUP) == 1_100
    assert memory.last_addition("n1") == 0


def test_answer_takes_precedence_over_an_earlier_read(memory: DataPlaneMemory) -> None:
    memory.begin_read()
    memory.acknowledge(GROUP, feed_pb2.Applied(group_bytes=2_000, total_bytes=2_000))
    memory.take(held(1_000, 500))
    assert (memory.of_group(GROUP), memory.of_group(OTHER_GROUP)) == (2_000, 500)
    memory.begin_read()
    memory.take(held(1_500))
    assert memory.of_group(GROUP) == 1_500


def test_all_groups_have_a_limit_together(memory: DataPlaneMemory) -> None:
    memory.take(held(1_000, 8_900))
    assert refusal(memory, 100, 5_000) is None
    assert refusal(memory, 101, 5_000) == ("data_plane_configuration_bytes", "9900")
    memory.add(OTHER_GROUP, "n", 1)
    assert refusal(memory, 100, 5_000) == ("data_plane_configuration_bytes", "9901")


def test_unknown_limit_refuses_nothing() -> None:
    assert refusal(DataPlaneMemory(), 1 << 40, 1 << 50) is None
