from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import FloatValue

from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.schema.json_decoding import compile_decoder
from pyservice.schema.methods import descriptor_of

Read = Callable[[Any], tuple[Any, list[tuple[tuple[str, ...], str]]]]


@pytest.fixture
def read(shape: type[Any]) -> Read:
    reader = compile_decoder(shape.DESCRIPTOR)

    def run(value: Any) -> tuple[Any, list[tuple[tuple[str, ...], str]]]:
        message = shape()
        return message, [(finding.location, finding.word) for finding in reader(message, value)]

    return run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "a\0é"),
        ("flag", False),
        ("signed", -(2**63)),
        ("signed", 2**63 - 1),
        ("small", -(2**31)),
        ("large", 2**64 - 1),
        ("count", 2**32 - 1),
        ("ratio", 1.5),
        ("ratio", 3),
    ],
)
def test_value_of_the_right_type_is_decoded_exactly(read: Read, name: str, value: Any) -> None:
    message, findings = read({name: value})
    assert not findings
    assert getattr(message, name) == value


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        *(("text", value, "wrong-type") for value in (1, ["a"])),
        *(("flag", value, "wrong-type") for value in (1, "true")),
        *(("count", value, "wrong-type") for value in (True, "1", 1.0, 1e3)),
        *(("count", -1, "too-low"), ("count", 2**32, "too-high")),
        *(("small", -(2**31) - 1, "too-low"), ("small", 2**31, "too-high")),
        *(("large", -1, "too-low"), ("large", 2.0**64, "too-high")),
        ("signed", -(2.0**64), "too-low"),
        *(("ratio", value, "wrong-type") for value in (True, "1")),
        *(("digest", value, "wrong-type") for value in ("not base64!", "YQ", 1)),
        *(("kind", value, "not-allowed") for value in ("KIND_ROUND", "Round", "unspecified")),
        ("kind", 1, "wrong-type"),
        *(("inner", [], "wrong-type"), ("inner", "x", "wrong-type")),
        *(("numbers", {}, "wrong-type"), ("numbers", "12", "wrong-type")),
        ("by_name", [], "wrong-type"),
        ("listed", {"names": ["a"]}, "wrong-type"),
        ("made_ts", 5, "wrong-type"),
        *(
            ("made_ts", value, "invalid")
            for value in ("yesterday", "2024-02-30T00:00:00Z", "2024-02-03T00:00:00", "2024-02-03")
        ),
    ],
)
def test_value_of_another_type_is_rejected_with_its_word(
    read: Read, name: str, value: Any, word: str
) -> None:
    message, findings = read({name: value})
    assert findings == [((name,), word)]
    if name not in ("inner", "made_ts", "listed"):
        assert not message.ListFields()


def test_all_problems_are_reported_with_the_names_as_sent(read: Read) -> None:
    _, findings = read(
        {
            "text": 1,
            "numbers": [1, "2", None, 4],
            "inners": [{"size": 1}, {"size": -1}, 3],
            "by_name": {"a": 1, "b": "c", "": None},
            "by_inner": {"k": {"size": "x", "colour": 1}},
            "listed": ["a", 1],
            "unheard": None,
        }
    )
    assert findings == [
        (("text",), "wrong-type"),
        (("numbers", "1"), "wrong-type"),
        (("numbers", "2"), "wrong-type"),
        (("inners", "1", "size"), "too-low"),
        (("inners", "2"), "wrong-type"),
        (("by_name", "b"), "wrong-type"),
        (("by_name", ""), "wrong-type"),
        (("by_inner", "k", "size"), "wrong-type"),
        (("by_inner", "k", "colour"), "unknown-field"),
        (("listed", "1"), "wrong-type"),
        (("unheard",), "unknown-field"),
    ]


def test_unreadable_entry_keeps_the_indexes_of_the_others(read: Read) -> None:
    message, _ = read({"numbers": [7, "x", 9], "digests": ["YQ==", 1], "listed": [1, "b"]})
    assert list(message.numbers) == [7, 0, 9]
    assert list(message.digests) == [b"a", b""]
    assert list(message.listed.names) == ["", "b"]


def test_lenient_reader_ignores_unknown_members(shape: type[Any]) -> None:
    reader = compile_decoder(shape.DESCRIPTOR, ignores_unknown=True)
    assert not reader(shape(), {"unheard": 1, "inner": {"colour": [1]}})


def test_field_from_another_source_is_unknown(shape: type[Any]) -> None:
    reader = compile_decoder(shape.DESCRIPTOR, without=("text",))
    message = shape()
    assert [finding.word for finding in reader(message, {"text": "a"})] == ["unknown-field"]
    assert message.text == ""


def test_null_leaves_a_member_unset(read: Read, shape: type[Any]) -> None:
    message, findings = read(dict.fromkeys(field.name for field in shape.DESCRIPTOR.fields))
    assert not findings
    assert not message.ListFields()


def test_empty_object_or_list_is_set_where_presence_exists(read: Read) -> None:
    message, findings = read({"inner": {}, "listed": [], "numbers": []})
    assert not findings
    assert [field.name for field, _ in message.ListFields()] == ["inner", "listed"]


def test_non_object_is_no_message(read: Read) -> None:
    assert [read(value)[1] for value in ([1], None)] == [[((), "wrong-type")]] * 2


@pytest.mark.parametrize(("spelling", "number"), [("round", 1), ("very_round", 2)])
def test_enum_names_omit_the_type_prefix(read: Read, spelling: str, number: int) -> None:
    message, findings = read({"kind": spelling})
    assert not findings
    assert message.kind == number


def test_service_enums_omit_the_type_prefix() -> None:
    request = admin_pb2.CreateTokenRequest()
    reader = compile_decoder(descriptor_of(request))
    assert not reader(request, {"kind": "environment", "namespace": "a/b"})
    assert request.kind == admin_pb2.TOKEN_KIND_ENVIRONMENT


@pytest.mark.parametrize(
    ("text", "seconds", "nanos"),
    [
        ("1970-01-01T00:00:00Z", 0, 0),
        ("2024-02-29T12:30:00.250Z", 1709209800, 250_000_000),
        ("2024-02-29T12:30:00.000000001z", 1709209800, 1),
        ("2024-02-29t14:30:00+02:00", 1709209800, 0),
        ("1969-12-31T23:59:59.5Z", -1, 500_000_000),
    ],
)
def test_timestamp_is_rfc_3339(read: Read, text: str, seconds: int, nanos: int) -> None:
    message, findings = read({"made_ts": text})
    assert not findings
    assert message.made_ts == Timestamp(seconds=seconds, nanos=nanos)


def test_second_member_of_a_oneof_is_rejected() -> None:
    request = matchmaker_pb2.FindLobbyRequest()
    reader = compile_decoder(descriptor_of(request))
    answer = {"client_response": "x"}
    findings = reader(request, {"captcha": {"captcha_b": answer, "captcha_a": answer}})
    assert [(item.location, item.word) for item in findings] == [
        (("captcha", "captcha_a"), "not-allowed")
    ]
    assert not reader(request, {"captcha": {"captcha_b": answer, "captcha_a": None}})


def test_field_without_a_json_form_fails_the_start() -> None:
    with pytest.raises(TypeError, match=r"FloatValue\.value has no JSON form"):
        compile_decoder(FloatValue.DESCRIPTOR)
