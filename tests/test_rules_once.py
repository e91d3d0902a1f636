"""Rules about requests to the matchmaker stand once, in one language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parent.parent

# A piece of code that any implementation of the rule has.
_RULES: Final = {
    "a find is allowed for a mode": r"has actions\.find disabled",
    "a create is allowed for a mode": r"has actions\.create disabled",
    "a mode takes tags": r"is not taggable",
    "a mode takes max_players": r"does not allow max_players to be chosen",
    "a mode is enabled in a region": r"is not enabled in \{",
    "a channel for each guest": r"fewer entries than party_size",
    "a rejoin of one player": r"together with rejoin_token",
    "a port can be attached": r"is a range and cannot be attached",
    "a token kind may send client_address": r"is for env_ tokens only",
    "the order of rate limits": r"keys\(\)\.take\(number\)|limits\[:number\]",
    "the form of a token": r"\[&str; 7\] = \[\"cloud\"|_TOKEN_FORM\b",
    "the largest token": r"TOKEN(_BYTES)?_MAX\b[^\n]*= 160",
    "the tokens that an operation takes": r"This operation takes",
    "the host of an origin": r"(fn|def) host_of_origin",
    "the form of an idempotency key": r"visible ASCII characters.*idempotency|KEY_BYTES_MAX: usize",
    "the media type of a body": r"Code::MediaTypeUnsupported|ServiceError\(\"MEDIA_TYPE_UNSUPPORTED",
    "the distance of a region": r"6371\.0088",
    "an encoded slash in a path": r"split\(\"%2F\"\)|_ENCODED_SLASH: Final",
    "the form of a traceparent": r"VERSION_00_BYTES: usize|\(\?!0\{16\}\)",
    "the address behind trusted proxies": r"(fn|def) forwarded_client",
    "the bytes that a client has received": r"BYTES_ACKED_AT|TCP_INFO",
    "the callers of an operation": r"Callers::Operators\)|(CLIENT|CONTROL)_OPERATIONS\b|authorizer\.client\b",
    "the error of a used up rate limit": r"Code::RateLimited\)\s*\.with|max\(1, ceil\(",
    "the host and port of a player": r"\[\{host(name)?\}\]:",
    "the response of find and join": r"RESPONSE_PLAYERS: u32|\.players\.add\(|lobby\.player\.token =",
    "the range of coordinates": r"-90\.0(\.\.=90\.0| <=)",
    "the body of an error": r"urn:hosting:problem:",
    "the problems that fit in gRPC": r"GRPC_PROBLEMS_BYTES_MAX: usize|_MAX_FIELDS_BYTES",
    "the details of an error in gRPC": r"struct ErrorInfo|ErrorInfo\(reason|FieldViolation\($",
    "the longest text that is matched": r"MATCHED_LENGTH\b[^\n]* = 4_?096",
    "the key of a client": r"to_bits\(\) >> 64|(octets\(\)|packed)\[(\.\.|:)8\]",
}
# The control plane has other rules for its tokens and for versions.
_DATA_PLANE: Final = (
    *(f"native/{crate}/" for crate in ("bindings", "front", "matchmaker")),
    *(f"pyservice/{package}/" for package in ("auth", "dataplane", "edge", "front", "rpc")),
    "pyservice/transport/",
)
_RULES_OF_DATA_PLANE: Final = {
    "a revoked token": r"\.is_(token_)?revoked\(|TokenRevoked\.into|Error\(\"TOKEN_REVOKED\"\)",
    "an expired token": r"TokenExpired\.into|Error\(\"TOKEN_EXPIRED\"|expires_ms <=",
    "the hash of a service token": r"Sha256::digest\(token\)|service_token(_grant)?\(sha256",
    "native steps: authorize, limit, read": r"self\.admit\(&caller",
    "steps in Python: authorize, limit, read": r"\.authorize\((request\.)?call\)$|limit\.check\(",
}
# The protos and `errors.toml` have these rules, and `contract.rs` is generated from them.
_GENERATED: Final = {
    "limits": r"(?i)(hold_ms|party_size|game_modes|regions)\w*(\)|\.len\(\))?(: \w+)? ?([<>]=?|=) ?\d[\d_]+",
    "fields": r"\"prevent_auto_create_lobby\"",
    "the depth of JSON": r"nested deeper|JSON_DEPTH_MAX: usize",
    "reasons of query parameters": r"percent-encoded UTF-8|must occur only once",
    "the detail of a message of another type": r"does not have the request type",
    "the detail of a body that is too large": r"Send at most \{\w*\} bytes, not",
}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    rust = (path for path in _ROOT.glob("native/*/src/**/*.rs") if "tests" not in path.as_posix())
    python = (path for path in _ROOT.glob("pyservice/**/*.py") if "pb" not in path.parts)
    return {
        str(path.relative_to(_ROOT)): path.read_text()
        for path in (*rust, *python)
        if path.name != "contract.rs"
    }


@pytest.mark.parametrize("rule", _RULES)
def test_rule_stands_in_one_file(sources: dict[str, str], rule: str) -> None:
    files = _files(sources, _RULES[rule])
    assert len(files) == 1, files


@pytest.mark.parametrize("rule", _RULES_OF_DATA_PLANE)
def test_rule_of_data_plane_stands_in_one_file(sources: dict[str, str], rule: str) -> None:
    files = _files(sources, _RULES_OF_DATA_PLANE[rule], _DATA_PLANE)
    assert len(files) == 1, files


@pytest.mark.parametrize("rule", _GENERATED)
def test_rule_of_protos_is_generated(sources: dict[str, str], rule: str) -> None:
    contract = (_ROOT / "native/matchmaker/src/contract.rs").read_text()
    assert re.search(_GENERATED[rule], contract)
    assert not _files(sources, _GENERATED[rule], _DATA_PLANE)


def _files(sources: dict[str, str], rule: str, folders: tuple[str, ...] = ("",)) -> list[str]:
    code = re.compile(rule, re.MULTILINE)
    return [
        path for path, text in sources.items() if path.startswith(folders) and code.search(text)
    ]
