"""What is said when the data plane does not take a namespace: to whoever changed it, and to whoever runs the service.

Who is told and when is `refused_configurations`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyservice.errors import FieldProblem, ServiceError
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

_WORD: Final = "not-allowed"
_TAKEN: Final = "not-unique"
"""Of what another namespace has (decisions 3)."""

Orphans = Mapping[str, feed_pb2.HeldConfiguration]


def refusal(
    message: configuration_pb2.NamespaceConfiguration,
    refused: feed_pb2.Refused,
    detail: str,
    orphans: Orphans,
) -> ServiceError:
    """The data plane's problems with a message, where whoever set what is in it sent it (decisions 2)."""
    problems: list[FieldProblem] = []
    for problem in refused.problems:
        where, subject = _as_sent(message, problem.path)
        rest = _LEFT_OVER if problem.held_by in orphans else ""
        word = _TAKEN if problem.held_by else _WORD
        problems.append(FieldProblem((*where, word), f"{subject} {problem.reason}{rest}"))
    return ServiceError("VALIDATION_FAILED", detail, errors=problems)


def _as_sent(
    message: configuration_pb2.NamespaceConfiguration, path: Sequence[str]
) -> tuple[list[str], str]:
    """Names of fields as they were sent, and what a sentence about them begins with. Without names: nobody sent it."""
    names: list[str]
    match list(path):
        case ["versions", _, "matchmaker", *rest]:
            names = ["config", "matchmaker", *rest]
        case ["versions", _, ("display_name" | "version_id") as name]:
            names = [name]
        case ["current_version_id"]:
            names = ["version_id"]
        case ["matchmaker", *rest] if rest:
            names = rest
        case ["access", "enable_domain_public_auth"]:
            names = ["enabled"]
        case ["access", "domains", index]:
            return ["domain"], f"domain {message.access.domains[int(index)]}"
        case ["access", "domains"]:
            names = ["domain"]
        case ["access", "cdn_domains", index]:
            # The service makes it of the names of game and namespace.
            host = message.access.cdn_domains[int(index)]
            return ["name_id"], f"name_id makes the host {host}, which"
        case ["development_tokens", _, ("hostname" | "ports"), *_]:
            names = list(path[2:])
        case [("name_id" | "display_name") as name]:
            names = [name]
        case _:
            return [], f"the namespace's {'.'.join(path)}" if path else "the namespace"
    return names, ".".join(names)


def reason_of(refused: feed_pb2.Refused, orphans: Orphans) -> str:
    """The first problem, or the first that somebody can do something about, for whoever runs the service: by the names
    of the feed.
    """
    for problem in refused.problems:
        orphan = orphans.get(problem.held_by)
        if orphan is not None:
            return (
                f"{_sentence(problem)}: {orphan.name} ({orphan.namespace_id}), which no record has; "
                "see `pyservice namespace orphans`"
            )
    return _sentence(refused.problems[0]) if refused.problems else "refused"


def _sentence(problem: feed_pb2.Problem) -> str:
    return f"{'.'.join(problem.path)} {problem.reason}".lstrip()


def name_of(message: configuration_pb2.NamespaceConfiguration) -> str:
    """How people call it."""
    return f"{message.game.name_id}/{message.name_id}"


def is_of_version(refused: feed_pb2.Refused) -> bool:
    """Whether it is for the version that the namespace is to run, or for the size of all."""
    return any(
        not problem.path or problem.path[0] in ("versions", "current_version_id")
        for problem in refused.problems
    )
