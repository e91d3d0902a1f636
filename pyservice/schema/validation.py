"""The rules of the protos, applied to messages: ``validate`` is what both doors ask.

The messages of the hot operations are checked by closures (``rules``); all others go to the
protovalidate library, which is also the oracle of the closures in the tests. Rules that need more
than the message (names that exist, settings) are the handlers'.

A rule in CEL has an id from which the problem is told: on a field the id is a problem word, on a
message it is field names and a word, such as ``max.too-low``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import protovalidate
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.pb.errors import WORDS
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.schema.methods import Method, descriptor_of, form_of, is_map, map_value
from pyservice.schema.rules import Check, Finding, Findings, compile_rules, judge_raw_json

HOT: Final[tuple[type[Message], ...]] = (
    matchmaker_pb2.PlayerConnectedRequest,
    matchmaker_pb2.PlayerDisconnectedRequest,
    matchmaker_pb2.JoinLobbyRequest,
    matchmaker_pb2.FindLobbyRequest,
)


def validate(message: Message) -> list[FieldProblem]:
    """Every problem of a message by the rules of its proto; empty when it is fine."""
    check = _checks.get(type(message)) or _add_check(type(message))
    found = check(message)
    return [field_problem(*finding) for finding in found] if found else []


class Unread(NamedTuple):
    """What of a request could not be put into its message, by the place where it was sent."""

    in_query: Sequence[FieldProblem] = ()
    in_body: Sequence[FieldProblem] = ()


NOTHING_UNREAD: Final = Unread()

_JUDGES_ENTRIES: Final = ("required", "not-unique", "too-few")


def refuse_invalid(method: Method, message: Message, unread: Unread = NOTHING_UNREAD) -> None:
    """Raises ServiceError when a request breaks the rules of its proto, whichever door it took.

    What the rules say of a field that could not be read is of no interest. The code tells the first
    place that has a problem: ID_INVALID the path, QUERY_INVALID the query, BODY_INVALID the body;
    ``errors`` has all. A raw body over the method's limit is BODY_TOO_LARGE.
    """
    limit = method.body_limit_bytes
    if limit is not None and method.body_field not in ("", "*"):
        size = len(getattr(message, method.body_field))
        if size > limit:
            raise ServiceError("BODY_TOO_LARGE", f"Send at most {limit} bytes, not {size}.")
    problems = validate(message)
    in_query, in_body = unread
    if not (problems or in_body or in_query):
        return
    known = [problem.path[:-1] for problem in (*in_query, *in_body)]
    in_path = [problem for problem in problems if problem.path[0] in method.path_fields]
    others = [
        problem
        for problem in problems
        if problem.path[0] not in method.path_fields and not _is_known(problem, known)
    ]
    is_in_query = bool(in_query) or bool(others and not method.body_field)
    code = "ID_INVALID" if in_path else "QUERY_INVALID" if is_in_query else "BODY_INVALID"
    raise ServiceError(code, errors=[*in_path, *in_query, *in_body, *others])


def _is_known(problem: FieldProblem, known: list[tuple[str, ...]]) -> bool:
    """Whether it is about what could not be read, or judges a field without its unread entries."""
    location, word = problem.path[:-1], problem.path[-1]
    return any(
        location[: len(place)] == place
        or (word in _JUDGES_ENTRIES and place[: len(location)] == location)
        for place in known
    )


_library = protovalidate.Validator()

_WORDS_OF_RULES: Final[Mapping[str, str]] = {
    "required": "required",
    "min_len": "too-short",
    "min_bytes": "too-short",
    "max_len": "too-long",
    "max_bytes": "too-long",
    "gt": "too-low",
    "gte": "too-low",
    "lt": "too-high",
    "lte": "too-high",
    "min_items": "too-few",
    "min_pairs": "too-few",
    "max_items": "too-many",
    "max_pairs": "too-many",
    "unique": "not-unique",
    "in": "not-allowed",
    "not_in": "not-allowed",
    "const": "not-allowed",
    "defined_only": "not-allowed",
}


def ask_library(message: Message) -> list[Finding]:
    """What the library says of a message, in our words."""
    found = _library.collect_violations(message)
    return [_finding_of(descriptor_of(message), violation) for violation in found]


def _finding_of(descriptor: Descriptor, violation: Any) -> Finding:
    proto = violation.proto
    location = _location_of(descriptor, proto.field.elements if proto.field else ())
    *names, rule = proto.rule_id.split(".")
    if rule in WORDS:  # a rule of ours in CEL, or required
        return Finding((*location, *names), rule, proto.message)
    word = _WORDS_OF_RULES.get(rule)
    if word is None and rule.startswith(("gt", "len")):
        # A rule with two ends: which of them was passed is seen in the value.
        value = violation.field_value
        is_length = rule.startswith("len")
        is_low = (len(value) if is_length else value) < violation.rule_value
        word = ("too-short" if is_length else "too-low") if is_low else None
        word = word or ("too-long" if is_length else "too-high")
    return Finding(location, word or "invalid", proto.message)


def _location_of(descriptor: Descriptor, elements: Iterable[Any]) -> tuple[str, ...]:
    """Names, indexes and keys of a path of the library, as they are in JSON."""
    location: list[str] = []
    current: Descriptor | None = descriptor
    is_unwrapped = False
    for element in elements:
        field = current.fields_by_name[element.field_name] if current else None
        if not is_unwrapped:
            location.append(element.field_name)
        if element.subscript is not None:
            location.append(str(element.subscript.value))
        is_unwrapped = field is not None and form_of(field).unwrap
        current = _message_of(field) if field is not None else None
    return tuple(location)


def _message_of(field: FieldDescriptor) -> Descriptor | None:
    return map_value(field).message_type if is_map(field) else field.message_type


def _with_library(message_class: type[Message]) -> Check:
    """The library, and the raw JSON fields, of which it knows nothing."""
    raw = [
        (field.name, judge_raw_json(form_of(field).raw_json))
        for field in descriptor_of(message_class).fields
        if form_of(field).raw_json
    ]

    def check(message: Message) -> Findings:
        found = ask_library(message)
        for name, judge in raw:
            for below in judge(getattr(message, name)):
                found.append(below._replace(location=(name, *below.location)))
        return found

    return check


def _add_check(message_class: type[Message]) -> Check:
    return _checks.setdefault(message_class, _with_library(message_class))


_checks: Final[dict[type[Message], Check]] = {
    message_class: compile_rules(descriptor_of(message_class)) for message_class in HOT
}
