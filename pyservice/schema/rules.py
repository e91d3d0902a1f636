"""The validation rules of a message, compiled from its descriptor to Python closures.

For the messages of hot operations, which ask nothing but length, form, range, number and likeness:
a rule that no closure stands for is refused when the service starts. Which messages are compiled,
and what a door makes of the findings, is validation's.

A value that keeps all rules costs one pass over predicates; only one that breaks a rule is looked at
again to say which. Of a repeated field or a map with too many entries that is told, and entries are
judged as far as they are allowed: what a request costs is bounded by its proto, not by its sender.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pyservice.pb.buf.validate import validate_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2, options_pb2
from pyservice.schema import jsontext
from pyservice.schema.methods import form_of, is_map, map_key, map_value, option
from pyservice.schema.problems import Finding, Findings, at
from pyservice.schema.sizes import limit_of, too_many

Check = Callable[[Message], Findings]
Judge = Callable[[Any], Findings]


MATCHED_LENGTH: Final = 4096
"""Characters beyond which a text that is too long is not matched with its pattern as well: that can
take a hundred times the memory of the text. Length comes before pattern in a message of rules."""


class UnsupportedRule(Exception):
    """A rule that cannot be compiled; its message has to stay with the library."""


def _is_single_rejoin(message: matchmaker_pb2.JoinLobbyRequest) -> bool:
    return not message.HasField("rejoin_token") or message.party_size <= 1


_CHANNELS_MAX: Final = 63


def _is_channel_per_guest(
    message: matchmaker_pb2.FindLobbyRequest | matchmaker_pb2.JoinLobbyRequest,
) -> bool:
    # The first token is the caller's own; more than any party has is another rule's.
    count = len(message.event_channels)
    return not count or count > _CHANNELS_MAX or count < (message.party_size or 1)


# What CEL rules of messages say, in Python. The oracle test holds both to the same verdict.
TWINS: Final[Mapping[tuple[str, str], Callable[[Any], bool]]] = {
    ("hosting.v1.JoinLobbyRequest", "party_size.not-allowed"): _is_single_rejoin,
    ("hosting.v1.JoinLobbyRequest", "event_channels.too-many"): _is_channel_per_guest,
    ("hosting.v1.FindLobbyRequest", "event_channels.too-many"): _is_channel_per_guest,
}


class _FieldRules(NamedTuple):
    name: str
    judge: Judge | None
    is_required: bool


def compile_rules(descriptor: Descriptor) -> Check:
    """Closures for all rules of a message and the messages in it. Raises UnsupportedRule."""
    # Keyed by descriptor: that is how a message lists what is set in it.
    fields = {field: _compile_field(field) for field in descriptor.fields}
    required = [rules.name for rules in fields.values() if rules.is_required]
    twins = _compile_cel(descriptor)

    def check(message: Message) -> Findings:
        found: list[Finding] = []
        seen = 0
        present = message.ListFields()
        for field, value in present:
            name, judge, is_required = fields[field]
            seen += is_required
            below = judge(value) if judge else ()
            if below:
                found += at(name, below)
        if seen != len(required):
            missing = set(required).difference(field.name for field, _ in present)
            found[:0] = [Finding((name,), "required", "is required") for name in sorted(missing)]
        for twin in twins:
            found += twin(message)
        return found

    return check


def _compile_cel(descriptor: Descriptor) -> list[Check]:
    rules = option(descriptor, validate_pb2.message)
    _only(descriptor.full_name, rules, {"cel"})
    return [_compile_twin(descriptor, rule) for rule in rules.cel]


def _compile_twin(descriptor: Descriptor, rule: Any) -> Check:
    holds = TWINS.get((descriptor.full_name, rule.id))
    if holds is None:
        raise UnsupportedRule(f"{descriptor.full_name}: {rule.id} has no twin in Python")
    *location, word = rule.id.split(".")
    finding = (Finding(tuple(location), word, rule.message),)
    return lambda message: () if holds(message) else finding


def _compile_field(field: FieldDescriptor) -> _FieldRules:
    rules = option(field, validate_pb2.field)
    kind = rules.WhichOneof("type")
    _only(field.full_name, rules, {"required", kind})
    own = getattr(rules, kind) if kind else None
    if is_map(field):
        judge = _judge_map(field, own)
    elif field.is_repeated:
        judge = _judge_repeated(field, own)
    else:
        judge = _judge_value(field, kind, own)
        if own is not None and not field.has_presence and not rules.required:
            # A zero that is not set would have to keep the rules too, and nothing lists it.
            raise UnsupportedRule(f"{field.full_name}: rules on a field without presence")
    return _FieldRules(field.name, judge, rules.required)


def _judge_repeated(field: FieldDescriptor, rules: Any) -> Judge | None:
    _only(field.full_name, rules, {"max_items", "unique", "items"})
    items = rules.items if rules and rules.HasField("items") else None
    each = _judge_element(field, items)
    limit = limit_of(field)
    is_unique = bool(rules and rules.unique)
    repeats = _finding("not-unique", "must not repeat an entry")
    if not (each or limit is not None or is_unique):
        return None

    def judge(values: Any) -> Findings:
        found: list[Finding] = []
        if limit is not None and len(values) > limit:
            found.append(too_many(limit))
            values = values[:limit]
        if is_unique and len(values) > 1 and len(set(values)) != len(values):
            found.append(repeats)
        if each:
            for index, value in enumerate(values):
                below = each(value)
                if below:
                    found += at(str(index), below)
        return found

    return judge


def _judge_map(field: FieldDescriptor, rules: Any) -> Judge | None:
    _only(field.full_name, rules, {"max_pairs", "keys", "values"})
    keys = rules.keys if rules and rules.HasField("keys") else None
    values = rules.values if rules and rules.HasField("values") else None
    judge_key = _judge_element(map_key(field), keys)
    judge_value = _judge_element(map_value(field), values)
    limit = limit_of(field)
    if not (judge_key or judge_value or limit is not None):
        return None

    def judge(pairs: Any) -> Findings:
        found: list[Finding] = []
        if limit is not None and len(pairs) > limit:
            found.append(too_many(limit))
        for key in islice(pairs, limit):
            of_key = judge_key(key) if judge_key else ()
            of_value = judge_value(pairs[key]) if judge_value else ()
            if of_key or of_value:
                found += at(str(key), [*of_key, *of_value])
        return found

    return judge


def _judge_element(field: FieldDescriptor, rules: Any) -> Judge | None:
    """The judge of an entry of a repeated field, or of a map's keys or values."""
    kind = rules.WhichOneof("type") if rules is not None else None
    _only(field.full_name, rules, {kind})
    return _judge_value(field, kind, getattr(rules, kind) if kind else None)


def _judge_value(field: FieldDescriptor, kind: str | None, rules: Any) -> Judge | None:
    if field.message_type is not None:
        if rules is not None:
            raise UnsupportedRule(f"{field.full_name}: {kind}")
        judge = compile_rules(field.message_type)
        return _unwrapped(judge) if form_of(field).unwrap else judge
    raw = form_of(field).raw_json
    if raw:
        return judge_raw_json(raw)
    return _judge_all(_value_rules(field, rules)) if rules is not None else None


def _unwrapped(judge_inner: Judge) -> Judge:
    """For a message that in JSON is its only field: that field's name is not in the location."""

    def judge(message: Any) -> Findings:
        found = judge_inner(message)
        return [finding._replace(location=finding.location[1:]) for finding in found]

    return judge


def judge_raw_json(kind: int) -> Judge:
    """Judges a field that holds JSON text; no text is no value."""
    not_object = [_finding("wrong-type", "must be a JSON object")]

    def judge(text: bytes) -> Findings:
        if not text:
            return ()
        try:
            value = jsontext.parse(text)
        except jsontext.JsonRefused as refused:
            return [_finding(refused.word, refused.reason)]
        is_wrong = kind == options_pb2.RAW_JSON_OBJECT and not isinstance(value, dict)
        return not_object if is_wrong else ()

    return judge


class Rule(NamedTuple):
    """A predicate that a value has to meet, and what is said of one that does not."""

    holds: Callable[[Any], Any]
    finding: Finding


def _judge_all(rules: list[Rule]) -> Judge | None:
    predicates = [rule.holds for rule in rules]

    def judge(value: Any) -> Findings:
        for holds in predicates:
            if not holds(value):
                return _broken(rules, value)
        return ()

    return judge if rules else None


def _broken(rules: list[Rule], value: Any) -> list[Finding]:
    found: list[Finding] = []
    for rule in rules:
        if not rule.holds(value):
            found.append(rule.finding)
            if rule.finding.word == "too-long" and len(value) > MATCHED_LENGTH:
                break
    return found


def _finding(word: str, reason: str) -> Finding:
    return Finding((), word, reason)


def _value_rules(field: FieldDescriptor, rules: Any) -> list[Rule]:
    found: list[Rule] = []
    for rule, limit in rules.ListFields():
        make = _VALUE_RULES.get((field.cpp_type == FieldDescriptor.CPPTYPE_STRING, rule.name))
        if make is None:
            raise UnsupportedRule(f"{field.full_name}: {rule.full_name}")
        found.append(make(limit))
    return found


def _shortest(limit: int) -> Rule:
    finding = _finding("too-short", f"must have at least {limit} characters")
    return Rule(lambda value: len(value) >= limit, finding)


def _longest(limit: int) -> Rule:
    finding = _finding("too-long", f"must have at most {limit} characters")
    return Rule(lambda value: len(value) <= limit, finding)


def _largest(limit: int) -> Rule:
    finding = _finding("too-long", f"must have at most {limit} bytes")
    return Rule(
        lambda value: (len(value) if value.isascii() else len(value.encode())) <= limit, finding
    )


def _pattern(pattern: str) -> Rule:
    # Anchored at both ends or not compiled: ``$`` means the end here and before a line break there.
    if not (pattern.startswith("^") and pattern.endswith("$")):
        raise UnsupportedRule(f"pattern {pattern} has to be anchored at both ends")
    finding = _finding("invalid", f"must match {pattern}")
    return Rule(re.compile(pattern[1:-1], re.ASCII).fullmatch, finding)


def _address(_: bool) -> Rule:
    def holds(value: str) -> bool:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            return False
        return True

    return Rule(holds, _finding("invalid", "must be an IP address"))


def _at_least(limit: int) -> Rule:
    return Rule(limit.__le__, _finding("too-low", f"must be at least {limit}"))


def _at_most(limit: int) -> Rule:
    return Rule(limit.__ge__, _finding("too-high", f"must be at most {limit}"))


# By (is a string, name of the rule).
_VALUE_RULES: Final[Mapping[tuple[bool, str], Callable[[Any], Rule]]] = {
    (True, "min_len"): _shortest,
    (True, "max_len"): _longest,
    (True, "max_bytes"): _largest,
    (True, "pattern"): _pattern,
    (True, "ip"): _address,
    (False, "gte"): _at_least,
    (False, "lte"): _at_most,
}


def _only(where: str, rules: Any, known: set[str | None]) -> None:
    """Refuses rules that no closure stands for, so that none is ever left out in silence."""
    for rule, _ in rules.ListFields() if rules is not None else ():
        if rule.name not in known:
            raise UnsupportedRule(f"{where}: {rule.full_name}")
