"""What is said when the data plane does not take a namespace: to whoever changed it, and to whoever runs the service.

Who is told and when is `feeder`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2

NOTHING_SWITCHED: Final = "The data plane does not take this version; nothing was switched."
SWITCHED_BACK: Final = (
    "The data plane does not take the version that was set; the namespace runs the one that it ran. Anything else that "
    "was changed is stored and takes effect."
)
STORED: Final = (
    "The change is stored, but the data plane does not take the namespace as it is now: the namespace runs what it "
    "ran. It takes effect when what the errors name is set right."
)
_LEFT_OVER: Final = (
    "; that one is left of another database, and the operator of this service can remove it"
)

Orphans = Mapping[str, feed_pb2.HeldConfiguration]


def refusal(refused: feed_pb2.Refused, detail: str, orphans: Orphans) -> ServiceError:
    """The data plane's problems, with the paths that the version's author knows."""
    problems: list[FieldProblem] = []
    for problem in refused.problems:
        path = list(problem.path)
        if path[:1] == ["versions"] and len(path) > 2:
            path = ["config", *path[2:]]
        elif path == ["current_version_id"]:
            path = ["version_id"]
        rest = _LEFT_OVER if problem.held_by in orphans else ""
        problems.append(field_problem(path, "not-allowed", problem.reason + rest))
    return ServiceError("VALIDATION_FAILED", detail, errors=problems)


def reason_of(refused: feed_pb2.Refused, orphans: Orphans) -> str:
    """The first problem, or the first that somebody can do something about, for whoever runs the service."""
    for problem in refused.problems:
        orphan = orphans.get(problem.held_by)
        if orphan is not None:
            return (
                f"{problem.reason}: {orphan.name} ({orphan.namespace_id}), which no record has; "
                "see `pyservice namespace orphans`"
            )
    return refused.problems[0].reason if refused.problems else "refused"


def name_of(message: configuration_pb2.NamespaceConfiguration) -> str:
    """How people call it."""
    return f"{message.game.name_id}/{message.name_id}"


def is_of_version(refused: feed_pb2.Refused) -> bool:
    """Whether it is for the version that the namespace is to run, or for the size of all."""
    return any(
        not problem.path or problem.path[0] in ("versions", "current_version_id")
        for problem in refused.problems
    )
