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
}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    rust = (path for path in _ROOT.glob("native/*/src/**/*.rs") if "tests" not in path.as_posix())
    python = (path for path in _ROOT.glob("pyservice/**/*.py") if path.parts[-4] != "pb")
    # The module with the error table is generated from the protos.
    return {
        str(path.relative_to(_ROOT)): path.read_text()
        for path in (*rust, *python)
        if path.name not in ("contract.rs", "errors.py", "comments.py")
    }


@pytest.mark.parametrize("rule", _RULES)
def test_rule_stands_in_one_file(sources: dict[str, str], rule: str) -> None:
    code = re.compile(_RULES[rule])
    files = [path for path, text in sources.items() if code.search(text)]
    assert len(files) == 1, files
