"""The rules of the protos, applied to messages: ``validate`` is what both doors ask.

The messages of the hot operations are checked by closures (``rules``); all others go to the
protovalidate library, which is also the oracle of the closures in the tests. Rules that need more
than the message (names that exist, settings) are the handlers'.

A rule in CEL has an id from which the problem is told: on a field the id is a problem word, on a
message it is field names and a word, such as ``max.too-low``.

Entries beyond what a repeated field or a map may have are not judged, and an answer tells a bounded
number of problems (``problems``): a request costs time linear in its size, whatever is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import protovalidate
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.errors import WORDS
from pyservice.pb.hosting.v1 import matchmaker_pb2, versions_pb2
from pyservice.schema.methods import Method, descriptor_of, form_of, is_map, map_value
from pyservice.schema.problems import Finding, Findings, is_unlisted, tell
from pyservice.schema.rules import Check, compile_rules, judge_raw_json
from pyservice.schema.sizes import compile_sizes, is_of_size

HOT: Final[tuple[type[Message], ...]] = (
    matchmaker_pb2.PlayerConnectedRequest,
    matchmaker_pb2.PlayerDisconnectedRequest,
    matchmaker_pb2.JoinLobbyRequest,
    matchmaker_pb2.FindLobbyRequest,
    # Of up to 4 MiB, with raw JSON below the top.
    versions_pb2.CreateVersionRequest,
    versions_pb2.ValidateVersionRequest,
)


def validate(message: Message) -> list[FieldProblem]:
    """The problems of a message by the rules of its proto; empty when it is fine."""
    found = _judge(message)
    return tell(found) if found else []


def _judge(message: Message) -> Findings:
    check = _checks.get(type(message)) or _add_check(type(message))
    return check(message)


class Unread(NamedTuple):
    """What of a request could not be put into its message, by the place where it was sent."""

    in_query: Findings = ()
    in_body: Findings = ()


NOTHING_UNREAD: Final = Unread()

_JUDGES_ENTRIES: Final = ("required", "not-unique", "too-few")


def refuse_invalid(method: Method, message: Message, unread: Unread = NOTHING_UNREAD) -> None:
    """Raises ServiceError when a request breaks the rules of its proto, whichever door it took.

    What the rules say of a field that could not be read is of no interest. The code tells the first
    place that has a problem: ID_INVALID the path, QUERY_INVALID the query, BODY_INVALID the body;
    ``errors`` has those of all places. A raw body over the method's limit is BODY_TOO_LARGE.
    """
    limit = method.body_limit_bytes
    if limit is not None and method.body_field not in ("", "*"):
        size = len(getattr(message, method.body_field))
        if size > limit:
            raise ServiceError("BODY_TOO_LARGE", f"Send at most {limit} bytes, not {size}.")
    found = _judge(message)
    in_query, in_body = unread
    if not (found or in_body or in_query):
        return
    path_places = {(name,) for name in method.path_fields}
    in_path = [finding for finding in found if finding.location[:1] in path_places]
    elsewhere = [finding for finding in found if finding.location[:1] not in path_places]
    others = _without_unread(elsewhere, (*in_query, *in_body))
    is_in_query = bool(in_query) or bool(others and not method.body_field)
    code = "ID_INVALID" if in_path else "QUERY_INVALID" if is_in_query else "BODY_INVALID"
    raise ServiceError(code, errors=tell([*in_path, *in_query, *in_body, *others]))


def _without_unread(found: list[Finding], unread: Findings) -> list[Finding]:
    """Without what is about an unread place, or judges a field without its unread entries."""
    places = {
        finding.location for finding in unread if not (is_of_size(finding) or is_unlisted(finding))
    }
    fields = {finding.location for finding in found if finding.word in _JUDGES_ENTRIES}
    lengths = {len(location) for location in fields}
    incomplete = fields & {place[:length] for place in places for length in lengths}
    return [
        finding
        for finding in found
        if not (finding.word in _JUDGES_ENTRIES and finding.location in incomplete)
        and not any(
            finding.location[:length] in places for length in range(len(finding.location) + 1)
        )
    ]


class _Library(threading.local):
    """One for each thread that validates: large requests are read in a thread of their own."""

    def __init__(self) -> None:
        self.validator = protovalidate.Validator()


_library = _Library()

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
    found = _library.validator.collect_violations(message)
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
        # A oneof has a name of its own and is no field.
        field = current.fields_by_name.get(element.field_name) if current else None
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
    """The library, the sizes before it, and the raw JSON fields, of which it knows nothing."""
    raw = [
        (field.name, judge_raw_json(form_of(field).raw_json))
        for field in descriptor_of(message_class).fields
        if form_of(field).raw_json
    ]

    sizes = compile_sizes(descriptor_of(message_class))

    def check(message: Message) -> Findings:
        found = sizes.measure(message) if sizes else []
        judged = message
        if found and sizes:
            # The library would look at every entry, each more costly than all else of the request.
            judged = message_class()
            sizes.excerpt(message, judged)
        found += ask_library(judged)
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
