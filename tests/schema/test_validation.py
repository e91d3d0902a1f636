from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyservice.errors import ServiceError, field_problem
from pyservice.pb.buf.validate import validate_pb2
from pyservice.pb.hosting.internal.v1 import admin_pb2, configuration_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.findings import Finding
from pyservice.schema.methods import METHODS, descriptor_of, form_of, is_map, map_value, option
from pyservice.schema.size_limits import entry_limit
from pyservice.schema.validation import (
    NATIVE_MESSAGES,
    UndecodedFields,
    UnsupportedRule,
    compile_rules,
    library_findings,
    native_findings,
    refuse_invalid,
    validate,
)

LOBBY = "01a1f816-c6c0-45cf-aea6-491dc6e0571b"

# Values around each limit of the frequent messages' rules, and values close to each required
# format.
_TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "A_b-9", "a-b", "a--b", "-a", "a-", "a\n", "\na", "é", "é" * 32, "é" * 33]
        + ["x" * n for n in (32, 33, 64, 65, 128, 129, 512, 513)]
        + [LOBBY, LOBBY.upper(), LOBBY + "\n", LOBBY.replace("-", ""), "player_x"]
    ),
    st.text(max_size=6),
    st.text(alphabet="az09-_AZ\n", max_size=40),
)
_ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.text(alphabet="0123456789abcdefABCDEF:.%/x ", max_size=24),
    st.sampled_from(
        ["", "::", "::1%lo", "::1%", "1.2.3", "01.2.3.4", "1.2.3.4 ", "::ffff:1.2.3.4"]
    ),
)
_COUNTS = st.sampled_from(
    [0, 1, 2, 63, 64, 65, 65_535, 65_536, 600_000, 600_001, 2**32 - 1]
) | st.integers(0, 2**32 - 1)


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return _messages(message_factory.GetMessageClass(field.message_type))
    if field.name == "client_address":
        return _ADDRESSES
    if field.type == FieldDescriptor.TYPE_STRING:
        return _TEXTS
    return st.booleans() if field.type == FieldDescriptor.TYPE_BOOL else _COUNTS


def _fields(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if is_map(field):
        value = map_value(field)
        if value.message_type is not None:
            return st.dictionaries(_TEXTS, _values(value), max_size=2)
        return st.dictionaries(_TEXTS, _TEXTS, max_size=10)
    if field.is_repeated and field.message_type is not None:
        return st.lists(_values(field), max_size=2)
    if field.is_repeated:
        few = st.lists(_values(field), max_size=5)
        many = st.integers(30, 70).map(lambda n: [f"mode-{number}" for number in range(n)])
        return few | many
    return _values(field)


_strategies: dict[type[Message], st.SearchStrategy[Message]] = {}


def _messages(message_class: type[Message]) -> st.SearchStrategy[Message]:
    if message_class not in _strategies:
        # The library does not know raw JSON fields. Other tests cover these.
        fields = descriptor_of(message_class).fields
        members = {field.name: _fields(field) for field in fields if not form_of(field).raw_json}
        messages = st.fixed_dictionaries({}, optional=members)
        _strategies[message_class] = messages.map(lambda values: message_class(**values))
    return _strategies[message_class]


def _examples(*messages: Message) -> Callable[[Any], Any]:
    def add(test: Any) -> Any:
        for message in messages:
            test = example(message)(test)
        return test

    return add


@given(st.sampled_from([*NATIVE_MESSAGES]).flatmap(_messages))
@_examples(
    *(
        pb.FindLobbyRequest(game_modes=["a"], client_address=text)
        for text in ("fe80::1%eth0", "::%/7", "::1f\0")
    ),
    pb.FindLobbyRequest(game_modes=["a"], tags={"": "x" * 513}),
    *(
        pb.JoinLobbyRequest(lobby_id=LOBBY, event_channels=channels, party_size=size)
        for channels, size in (
            (["a" * 22], None),
            (["a" * 22] * 2, 2),
            (["a" * 22], 0),
            (["a" * 64] * 63, 64),
            (["a" * 21, "b" * 65, "é" * 30], None),
        )
    ),
    pb.JoinLobbyRequest(lobby_id=LOBBY, rejoin_token="", party_size=2),
    pb.JoinLobbyRequest(lobby_id=LOBBY, rejoin_token="x", party_size=0),
)
def test_rules_of_the_matchmaker_agree_with_the_library(message: Message) -> None:
    native = {finding.path for finding in native_findings(message)}
    library = {finding.path for finding in library_findings(message)}
    assert native <= library
    assert {path for path in library - native if not _is_beyond(message, path)} == set()


def _is_beyond(message: Message, path: tuple[str, ...]) -> bool:
    """Returns whether the problem is in an entry over the field's limit, which is not validated."""
    field = descriptor_of(message).fields_by_name[path[0]]
    limit = entry_limit(field) if field.is_repeated else None
    if limit is None or len(getattr(message, field.name)) <= limit:
        return False
    if is_map(field):
        return len(path) > 2
    return path[1:] == ("not-unique",) or (len(path) > 2 and int(path[1]) >= limit)


def test_field_of_another_wire_type_is_unknown() -> None:
    message = pb.FindLobbyRequest.FromString(b"\x08\x01")
    assert [problem.path for problem in validate(message)] == [("game_modes", "required")]


@pytest.mark.full
def test_generated_messages_satisfy_and_break_each_rule() -> None:
    """Without this, the comparison with the library could pass on valid messages alone."""
    words: set[str] = set()
    fine = 0

    @settings(max_examples=1_500, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from([*NATIVE_MESSAGES]).flatmap(_messages))
    def collect(message: Message) -> None:
        nonlocal fine
        findings = library_findings(message)
        fine += not findings
        words.update(finding.word for finding in findings)

    collect()
    assert fine > 20
    known = "required invalid too-low too-high too-long too-many not-unique not-allowed"
    assert words >= set(known.split())


@given(st.ip_addresses().map(str))
def test_every_ip_address_is_accepted_without_a_zone(address: str) -> None:
    assert not validate(pb.FindLobbyRequest(game_modes=["a"], client_address=address))
    zoned = pb.FindLobbyRequest(game_modes=["a"], client_address=f"{address}%eth0")
    assert {problem.path for problem in validate(zoned)} == {("client_address", "invalid")}


@pytest.mark.parametrize(
    ("length", "words"),
    [(4096, ["too-long", "invalid"]), (4097, ["too-long"]), (1 << 20, ["too-long"])],
)
def test_format_of_an_oversized_text_is_not_checked(length: int, words: list[str]) -> None:
    message = pb.FindLobbyRequest(game_modes=["a"], regions=["-" * length])
    assert [problem.path for problem in validate(message)] == [
        ("regions", "0", word) for word in words
    ]


def test_text_without_a_maximum_is_matched_at_any_length() -> None:
    message = pb.JoinLobbyRequest(lobby_id="0" * 5000, client_address="1" * 5000)
    assert {problem.path for problem in validate(message)} == {
        ("lobby_id", "invalid"),
        ("client_address", "invalid"),
    }


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (pb.SetLobbyClosedRequest(), {("is_closed", "required")}),
        (pb.SetLobbyClosedRequest(is_closed=False), set()),
        (pb.LobbyReadyRequest(), set()),
        (
            pb.AttachLobbyRequest(
                game_id="g",
                namespace_id="n" * 21,
                game_mode="a b",
                ports={
                    "WS": pb.AttachedPort(address="a_b", port=0),
                    "ok": pb.AttachedPort(address="::1"),
                },
                tags={"t" * 129: "v" * 513},
            ),
            {
                ("namespace_id", "invalid"),
                ("game_mode", "invalid"),
                ("ports", "WS", "invalid"),
                ("ports", "WS", "address", "invalid"),
                ("ports", "WS", "port", "too-low"),
                ("ports", "ok", "port", "required"),
                ("tags", "t" * 129, "too-long"),
            },
        ),
        (
            pb.HeartbeatRequest(player_tokens=pb.PlayerTokens(tokens=[""] * 65_536)),
            {("player_tokens", "too-many")},
        ),
        (
            configuration_pb2.NamespaceConfiguration(
                namespace_id=LOBBY,
                game={"game_id": LOBBY, "name_id": "a" * 41, "display_name": "A"},
                name_id="prod",
                display_name="Prod",
                current_version_id=LOBBY,
                versions=[
                    {
                        "version_id": LOBBY,
                        "display_name": "1",
                        "matchmaker": {
                            "max_players": 65_536,
                            "idle_lobbies": {"min": 3, "max": 2},
                            "game_modes": {
                                "duel": {
                                    "player_token_ttl": 4_999,
                                    "actions": {"join": {}},
                                    "docker": {"ports": {"ws": {"protocol": "quic"}}},
                                }
                            },
                        },
                    }
                ],
                matchmaker={"lobby_count_max": 0, "max_players": 1},
                environment_tokens=[{"token_id": LOBBY, "sha256": bytes(31)}],
                revoked_token_ids=[LOBBY, LOBBY],
            ),
            {
                ("game", "name_id", "too-long"),
                ("versions", "0", "matchmaker", "max_players", "too-high"),
                ("versions", "0", "matchmaker", "idle_lobbies", "max", "too-low"),
                *(
                    ("versions", "0", "matchmaker", "game_modes", "duel", *path)
                    for path in (
                        ("player_token_ttl", "too-low"),
                        ("actions", "join", "enabled", "required"),
                        ("docker", "ports", "ws", "protocol", "not-allowed"),
                    )
                ),
                ("matchmaker", "lobby_count_max", "too-low"),
                ("environment_tokens", "0", "sha256", "too-short"),
                ("revoked_token_ids", "not-unique"),
            },
        ),
        (
            admin_pb2.CreateTokenRequest(kind=7, namespace="a/b/c"),  # type: ignore[arg-type]
            {("kind", "not-allowed"), ("namespace", "invalid")},
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else "",
)
def test_library_messages_get_the_same_words(
    message: Message, expected: set[tuple[str, ...]]
) -> None:
    assert {problem.path for problem in validate(message)} == expected


@pytest.mark.parametrize(
    ("text", "word"), [(b"[1]", "wrong-type"), (b"{", "not-json"), (b"\xff", "not-json")]
)
def test_raw_json_is_validated_in_both_transports(text: bytes, word: str) -> None:
    hot = pb.FindLobbyRequest(game_modes=["a"], verification_data=text)
    assert [problem.path for problem in validate(hot)] == [("verification_data", word)]


def test_raw_json_may_be_empty_where_empty_is_a_value() -> None:
    assert not validate(pb.SetLobbyStateRequest(state=b""))
    assert not validate(pb.SetLobbyStateRequest(state=b"null"))


def test_problem_message_is_a_sentence() -> None:
    (problem,) = validate(pb.FindLobbyRequest(game_modes=["a"], party_size=65))
    assert problem == field_problem(["party_size"], "too-high", "must be at most 64")


def _refusal(name: str, message: Message, unread: UndecodedFields | None = None) -> ServiceError:
    with pytest.raises(ServiceError) as raised:
        refuse_invalid(
            METHODS[f"hosting.v1.Matchmaker.{name}"], message, unread or UndecodedFields()
        )
    return raised.value


def test_error_code_follows_the_first_invalid_field() -> None:
    bad_path = pb.AttachLobbyRequest(game_id="G", namespace_id="n")
    assert _refusal("AttachLobby", bad_path).code == "ID_INVALID"
    bad_body = pb.AttachLobbyRequest(game_id="g", namespace_id="n")
    assert _refusal("AttachLobby", bad_body).code == "BODY_INVALID"
    in_query = UndecodedFields(in_query=[Finding(("a",), "unknown-parameter", "is not known")])
    assert _refusal("AttachLobby", bad_body, in_query).code == "QUERY_INVALID"
    assert _refusal("ListLobbies", pb.ListLobbiesRequest(), in_query).code == "QUERY_INVALID"


@pytest.mark.parametrize(
    ("findings", "message", "paths"),
    [
        (
            [Finding(("game_modes", "0"), "wrong-type", "must be a string")],
            pb.FindLobbyRequest(game_modes=["", "", "a b"]),
            ["game_modes.0.wrong-type", "game_modes.1.invalid", "game_modes.2.invalid"],
        ),
        (
            [
                Finding(("game_modes",), "too-many", "must have at most 32 entries"),
                Finding(("game_modes", "2"), "wrong-type", "must be a string"),
            ],
            pb.FindLobbyRequest(game_modes=["a b", "", ""]),
            [
                *("game_modes.too-many", "game_modes.2.wrong-type"),
                *("game_modes.0.invalid", "game_modes.1.invalid"),
            ],
        ),
        (
            [Finding((), "not-json", "is not valid JSON")],
            pb.FindLobbyRequest(party_size=65),
            ["not-json"],
        ),
    ],
    ids=["field", "list", "body"],
)
def test_unreadable_part_is_not_validated(
    findings: list[Finding], message: Message, paths: list[str]
) -> None:
    error = _refusal("FindLobby", message, UndecodedFields(in_body=findings))
    assert [".".join(problem.path) for problem in error.errors] == paths


def test_oversized_raw_body_is_too_large_in_both_transports() -> None:
    error = _refusal("SetLobbyState", pb.SetLobbyStateRequest(state=b"x" * 65_537))
    assert error.code == "BODY_TOO_LARGE"


def test_native_messages_are_those_of_their_operations() -> None:
    requests = {method.request: method.slug for method in METHODS.values()}
    assert requests == {**requests, **NATIVE_MESSAGES}


def _request_fields(message_class: type[Message]) -> list[FieldDescriptor]:
    fields: list[FieldDescriptor] = []
    for field in descriptor_of(message_class).fields:
        fields.append(field)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            fields += _request_fields(message_factory.GetMessageClass(field.message_type))
    return fields


def test_every_request_field_is_required_or_has_presence() -> None:
    """Without presence, a missing field would count as zero."""
    fields = [(m, field) for m in METHODS.values() for field in _request_fields(m.request)]
    assert len(fields) > len(METHODS)
    for method, field in fields:
        is_required = option(field, validate_pb2.field).required
        is_safe = field.is_repeated or field.has_presence or is_required
        assert is_safe or method.body_field == field.name, field.full_name


def _message_with(rule: str, presence: bool = True) -> Any:
    name = f"Odd{abs(hash((rule, presence)))}"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/{name}.proto",
        package="tests.rules",
        syntax="proto3",
        dependency=["buf/validate/validate.proto"],
    )
    message = file.message_type.add(name=name)
    field = message.field.add(name="text", number=1, type=9, label=1)
    if presence:
        field.proto3_optional = True
        field.oneof_index = 0
        message.oneof_decl.add(name="_text")
    extension: Any = validate_pb2.field
    rules = field.options.Extensions[extension].string
    setattr(rules, rule, "a" if rule in ("pattern", "contains") else 1)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindMessageTypeByName(f"tests.rules.{name}")


def test_rule_without_a_compiled_form_fails_the_start() -> None:
    for rule in ("contains", "pattern", "len"):
        with pytest.raises(UnsupportedRule):
            compile_rules(_message_with(rule))
    with pytest.raises(UnsupportedRule, match="without presence"):
        compile_rules(_message_with("min_len", presence=False))
    with pytest.raises(UnsupportedRule, match="cel"):
        compile_rules(descriptor_of(configuration_pb2.IdleLobbies))
