from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import grpc
import pytest

from pyservice.errors import FieldProblem, ServiceError, codes, field_problem
from pyservice.pb.errors import TABLE, WORDS
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.schema.json_decoding import compile_decoder
from pyservice.schema.methods import descriptor_of
from pyservice.schema.validation import validate
from pyservice.transport.native import problem_json

SOURCE = Path(__file__).parents[2] / "proto" / "errors.toml"


def test_table_matches_its_file() -> None:
    rows = tomllib.loads(SOURCE.read_text())
    assert {code: row["http"] for code, row in rows["codes"].items()} == {
        code: row.http for code, row in TABLE.items()
    }
    shared = rows["shared"]
    assert {word: text.format_map(shared) for word, text in rows["words"].items()} == WORDS


@pytest.mark.parametrize(
    ("http", "grpc_status", "expected"),
    [
        (400, "INVALID_ARGUMENT", "BODY_INVALID QUERY_INVALID ID_INVALID HEADER_INVALID "
         "VALIDATION_FAILED PLAYER_TOKEN_INVALID"),
        (401, "UNAUTHENTICATED", "TOKEN_MISSING TOKEN_INVALID TOKEN_EXPIRED TOKEN_REVOKED"),
        (403, "PERMISSION_DENIED", "FORBIDDEN MATCHMAKER_VERIFICATION_FAILED CAPTCHA_REQUIRED "
         "CAPTCHA_FAILED PLAYER_TOKEN_WRONG_LOBBY"),
        (404, "NOT_FOUND", "NOT_FOUND GAME_NOT_FOUND NAMESPACE_NOT_FOUND VERSION_NOT_FOUND "
         "BUILD_NOT_FOUND SERVER_NOT_FOUND REGION_NOT_FOUND GROUP_NOT_FOUND SITE_NOT_FOUND "
         "UPLOAD_NOT_FOUND TOKEN_NOT_FOUND DEVICE_LINK_NOT_FOUND MATCHMAKER_LOBBY_NOT_FOUND "
         "MATCHMAKER_GAME_MODE_NOT_FOUND MATCHMAKER_REGION_NOT_FOUND"),
        (405, "INVALID_ARGUMENT", "METHOD_NOT_ALLOWED"),
        (408, "INVALID_ARGUMENT", "REQUEST_TIMEOUT"),
        (413, "INVALID_ARGUMENT", "BODY_TOO_LARGE UPLOAD_TOO_LARGE"),
        (414, "INVALID_ARGUMENT", "URI_TOO_LONG"),
        (415, "INVALID_ARGUMENT", "MEDIA_TYPE_UNSUPPORTED"),
        (422, "INVALID_ARGUMENT", "IDEMPOTENCY_KEY_REUSED"),
        (431, "INVALID_ARGUMENT", "HEADERS_TOO_LARGE"),
        (403, None, "UPLOAD_URL_INVALID"),
        (400, None, "UPLOAD_LENGTH_MISMATCH"),
        (409, "FAILED_PRECONDITION", "UPLOAD_INCOMPLETE UPLOAD_ALREADY_COMPLETE BUILD_INCOMPLETE "
         "DEVICE_LINK_USED IN_USE VERSION_CHANGED QUOTA_EXCEEDED MATCHMAKER_LOBBY_FULL MATCHMAKER_LOBBY_CLOSED "
         "MATCHMAKER_LOBBY_DRAINING MATCHMAKER_LOBBY_UNREACHABLE "
         "MATCHMAKER_NO_AVAILABLE_LOBBIES MATCHMAKER_TOO_MANY_LOBBIES "
         "MATCHMAKER_LOBBY_START_FAILED PLAYER_TOKEN_CONSUMED"),
        (429, "RESOURCE_EXHAUSTED", "RATE_LIMITED MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"),
        (503, "UNAVAILABLE", "OVERLOADED SHUTTING_DOWN CONTROL_PLANE_UNAVAILABLE STORAGE_FULL"),
        (503, "RESOURCE_EXHAUSTED", "PORTS_EXHAUSTED CAPACITY_EXHAUSTED"),
        (504, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
        (500, "INTERNAL", "INTERNAL"),
        (410, "FAILED_PRECONDITION", "MATCHMAKER_LOBBY_STOPPED PLAYER_TOKEN_EXPIRED "
         "PLAYER_REMOVED"),
        (403, "FAILED_PRECONDITION", "MATCHMAKER_FIND_DISABLED MATCHMAKER_JOIN_DISABLED "
         "MATCHMAKER_CREATE_DISABLED MATCHMAKER_TAGS_DISABLED "
         "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED MATCHMAKER_PUBLICITY_DISABLED "
         "MATCHMAKER_REGION_NOT_ENABLED"),
        (502, "UNAVAILABLE", "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
    ],
)  # fmt: skip
def test_statuses_match_the_reference(http: int, grpc_status: str | None, expected: str) -> None:
    codes = {code for code, row in TABLE.items() if (row.http, row.grpc) == (http, grpc_status)}
    assert codes == set(expected.split())


def test_every_row_is_complete() -> None:
    for code, row in TABLE.items():
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code)
        assert row.grpc is None or row.grpc in grpc.StatusCode.__members__
        assert row.fault in {"client", "server", "upstream"}
        assert row.title
        assert not row.title.endswith(".")
        assert row.detail.endswith(".")
        assert (row.retry_after_s is not None) == (row.http in {429, 503}), code


def test_titles_are_unique() -> None:
    titles = [row.title for row in TABLE.values()]
    assert len(set(titles)) == len(titles)


def test_client_fault_is_never_a_server_error() -> None:
    for code, row in TABLE.items():
        if row.http >= 500:
            assert row.fault != "client", code


def test_error_uses_the_table_text_by_default() -> None:
    plain = ServiceError("MATCHMAKER_LOBBY_FULL")
    assert (plain.http, plain.grpc, plain.fault) == (409, "FAILED_PRECONDITION", "client")
    assert plain.detail == TABLE["MATCHMAKER_LOBBY_FULL"].detail
    assert ServiceError("MATCHMAKER_LOBBY_FULL", "Wait.").detail == "Wait."


def test_retry_after_comes_from_the_table_or_the_caller() -> None:
    assert ServiceError("RATE_LIMITED").retry_after_s == 1
    assert ServiceError("RATE_LIMITED", retry_after_s=0).retry_after_s == 0
    assert ServiceError("NOT_FOUND").retry_after_s is None


def test_unknown_code_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        ServiceError("NO_SUCH_CODE")
    assert "NO_SUCH_CODE" not in codes()
    assert codes() == set(TABLE)


def test_unknown_problem_word_is_rejected() -> None:
    with pytest.raises(ValueError, match="too-blue"):
        field_problem(["a"], "too-blue")


def test_problem_path_ends_with_its_word_and_message_is_a_sentence() -> None:
    problem = field_problem(("tags", "a", "b"), "too-long")
    assert problem == FieldProblem(("tags", "a", "b", "too-long"), "tags.a.b is too long")
    assert field_problem(["n"], "too-high", "must be at most 3").message == "n must be at most 3"
    assert field_problem([], "not-json").message == "the body is not valid JSON"


def test_problem_body_is_the_contract_message() -> None:
    error = ServiceError(
        "BODY_INVALID", errors=[field_problem(["name"], "required")], metadata={"lobby_id": "x"}
    )
    body = json.loads(problem_json(error, "0" * 32))
    message = envelope_pb2.Problem()
    assert not compile_decoder(descriptor_of(message))(message, body)
    assert not validate(message)
    assert set(body) == {field.name for field in envelope_pb2.Problem.DESCRIPTOR.fields}
    assert body["errors"] == [{"path": ["name", "required"], "message": "name is required"}]
    assert body["message"] == body["detail"]
    assert body["type"] == "urn:hosting:problem:body-invalid"


def test_problem_omits_absent_fields() -> None:
    body = json.loads(problem_json(ServiceError("INTERNAL"), "0" * 32))
    assert "errors" not in body
    assert "metadata" not in body


def test_error_text_names_the_code() -> None:
    error = ServiceError("BODY_INVALID", "Fix it.", errors=[field_problem(["a", "0"], "invalid")])
    assert str(error) == "BODY_INVALID: Fix it.; a.0.invalid"
