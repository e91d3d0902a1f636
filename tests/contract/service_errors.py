"""Error codes of the whole service, each with the test that covers it.

A sweep is a test that calls every operation that can return the code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from pyservice.openapi import declared_codes, implied_codes
from pyservice.schema.methods import METHODS, Method

SWEEPS: Final = "tests/contract/test_service_errors.py"
_OF_DATA_PLANE: Final = ("hosting.v1.Matchmaker.", "hosting.v1.Events.")
_WAITS: Final = frozenset({"find", "create", "join", "attach", "detach", "get_state"})
"""Operations of the data plane that wait for a starting lobby, or for the control plane to check a
token.
"""

_NEW_SLOTS: Final = frozenset({"find", "create", "join", "attach", "ready", "set_state"})
"""Operations of the data plane that fail as soon as only the disk reserve is left."""


class SharedErrorTest(NamedTuple):
    """The test that covers an error code for the operations that `of` accepts. `reason` is set if
    the test is not a sweep.
    """

    of: Callable[[Method], bool]
    test: str
    reason: str = ""

    def __str__(self) -> str:
        return f"shown for all by {self.test}: {self.reason}" if self.reason else f"by {self.test}"


def is_passed(method: Method) -> bool:
    """Returns whether the control plane handles the operation."""
    return not method.name.startswith(_OF_DATA_PLANE)


def _any(_: Method) -> bool:
    return True


def _takes_body(method: Method) -> bool:
    return bool(method.body_field)


def _writes(method: Method) -> bool:
    return is_passed(method) or method.slug in _NEW_SLOTS


def _waits(method: Method) -> bool:
    return is_passed(method) or method.slug in _WAITS


_HANGS: Final = "test_hanging_control_plane_overloads_and_stop_answers_all"

_FULL_DISK: Final = (
    "tests/contract/test_full_disk.py::test_writes_fail_on_a_full_disk_and_reads_continue"
)

CONDITIONS: Final[dict[str, tuple[SharedErrorTest, ...]]] = {
    "CONTROL_PLANE_UNAVAILABLE": (
        SharedErrorTest(_any, f"{SWEEPS}::test_control_plane_outage_affects_only_its_operations"),
    ),
    "REQUEST_TIMEOUT": (
        SharedErrorTest(_any, f"{SWEEPS}::test_incomplete_request_times_out_in_every_operation"),
    ),
    "OVERLOADED": (
        SharedErrorTest(is_passed, f"{SWEEPS}::{_HANGS}"),
        SharedErrorTest(
            _takes_body, f"{SWEEPS}::test_bodies_above_the_memory_budget_are_overloaded"
        ),
        SharedErrorTest(
            _any,
            "tests/faults/test_hostile_grpc_clients.py"
            "::test_calls_that_wait_for_their_messages_are_limited",
            "a request without a body is answered at once, so only gRPC can have too many of them",
        ),
    ),
    "SHUTTING_DOWN": (
        SharedErrorTest(_waits, f"{SWEEPS}::{_HANGS}"),
        SharedErrorTest(
            _any,
            "tests/transport/test_both_transports.py::test_unfinished_request_at_shutdown_gets_an_error",
            "the operation waits at most for the disk, so a request before the stop is answered",
        ),
    ),
    "DEADLINE_EXCEEDED": (
        SharedErrorTest(
            is_passed, f"{SWEEPS}::test_hanging_control_plane_ends_in_deadline_exceeded"
        ),
        SharedErrorTest(
            _any,
            "tests/rpc/test_grpc_server.py::test_operation_past_its_deadline_is_cancelled",
            "only gRPC clients send a deadline, and the operation does not wait for long",
        ),
    ),
    "STORAGE_FULL": (
        SharedErrorTest(_writes, _FULL_DISK),
        SharedErrorTest(
            _any,
            "tests/faults/test_full_disk.py"
            "::test_exhausted_disk_reserve_loses_nothing_and_recovers",
            "connected players use the disk reserve, so the operation fails only without any reserve",
        ),
    ),
    "QUOTA_EXCEEDED": (
        SharedErrorTest(
            lambda method: method.slug in ("find", "create", "attach", "create_server"),
            "tests/control/test_process_quotas.py::test_lobbies_of_all_namespaces_count_exactly",
            "the test needs a service with small quotas",
        ),
        SharedErrorTest(
            lambda method: method.slug == "start_trial",
            "tests/dataplane/test_trials.py::test_trial_counts_for_the_quotas_of_the_group",
            "the test needs a service with small quotas",
        ),
        SharedErrorTest(
            _any,
            "tests/control/test_quotas.py::test_quota_admits_exactly_its_limit",
            "the test needs a service with small quotas",
        ),
    ),
    "INTERNAL": (
        SharedErrorTest(
            _any,
            "tests/transport/test_both_transports.py"
            "::test_unexpected_exception_is_logged_and_hidden_from_the_client",
            "no known request provokes this error, and such a request would be a defect",
        ),
    ),
}


def shared_error_test(method: Method, code: str) -> SharedErrorTest | None:
    return next((one for one in CONDITIONS.get(code, ()) if one.of(method)), None)


def left_to_others(method: Method, codes: Collection[str]) -> Iterator[tuple[str, SharedErrorTest]]:
    """Yields the codes of an operation that its own requests do not reach, each with its test."""
    for code in sorted({*declared_codes(method), *implied_codes(method)} - set(codes)):
        one = shared_error_test(method, code)
        if one is not None:
            yield code, one


def swept(code: str, test: Callable[..., None]) -> list[str]:
    """Returns the slugs that this sweep must call for the code. Raises ValueError if there are
    none.
    """
    rows = []
    for method in METHODS.values():
        one = shared_error_test(method, code)
        is_here = one is not None and not one.reason and one.test.endswith(f"::{test.__name__}")
        if is_here and code in {*declared_codes(method), *implied_codes(method)}:
            rows.append(method.slug)
    if not rows:
        raise ValueError(f"{test.__name__} is not for {code}")
    return sorted(rows)
