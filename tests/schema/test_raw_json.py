"""Raw JSON fields and unwrapped messages below the top level of a request: validated alike in both
transports.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pyservice.pb.hosting.v1 import versions_pb2
from pyservice.schema.methods import METHODS, descriptor_of, form_of, is_map, map_value
from pyservice.schema.validation import COMPILED_MESSAGES, validate


def _fields(descriptor: Descriptor) -> Iterator[FieldDescriptor]:
    for field in descriptor.fields:
        yield field
        kind = map_value(field) if is_map(field) else field
        if kind.message_type is not None:
            yield from _fields(kind.message_type)


def test_requests_with_nested_raw_json_have_compiled_rules() -> None:
    """The validation library does not know raw JSON fields. Without compiled rules, only top-level
    fields are checked.
    """
    deep = {
        method.request
        for method in METHODS.values()
        if any(
            form_of(field).raw_json and field.containing_type != descriptor_of(method.request)
            for field in _fields(descriptor_of(method.request))
        )
    }
    assert versions_pb2.CreateVersionRequest in deep
    assert deep <= set(COMPILED_MESSAGES)


@pytest.mark.parametrize(
    ("text", "word"), [(b"[1]", "wrong-type"), (b"{", "not-json"), (b"\xff", "not-json")]
)
def test_nested_raw_json_is_validated(text: bytes, word: str) -> None:
    request = versions_pb2.ValidateVersionRequest(
        game_id="arena", display_name="1", config={"kv": b"{}", "engine": {"unity": text}}
    )
    assert [problem.path for problem in validate(request)] == [("config", "engine", "unity", word)]


def test_unwrapped_field_problem_has_the_path_as_sent() -> None:
    request = versions_pb2.CreateVersionRequest(game_id="arena", display_name="1")
    request.config.cdn.routes.entries.add(glob="*", priority=1).middlewares.entries.add()
    assert [problem.path for problem in validate(request)] == [
        ("config", "cdn", "routes", "0", "middlewares", "0", "kind", "required")
    ]
