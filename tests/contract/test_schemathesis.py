"""Every operation against its OpenAPI description: examples, generated requests, and each error
code.

Each operation reaches its success and every code that a request can provoke, on both databases.
`-s` prints the counts. `test_service_errors` has the errors of the whole service.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from pyservice.errors import ServiceError
from pyservice.openapi import (
    CredentialKind,
    FilledExample,
    credential_kinds,
    curl,
    declared_codes,
    fill_example,
    implied_codes,
)
from pyservice.pb.errors import TABLE
from pyservice.transport.native import problem_json
from tests.contract import error_cases
from tests.contract.areas.mock_responses import ask_mock, check_mock
from tests.contract.response_check import ResponseChecker, is_failure
from tests.contract.scenario import BY_SLUG, ORIGIN, Scenario, ServedGame, open_served_game
from tests.contract.service_errors import CONDITIONS, left_to_others
from tests.support.databases import KINDS, Databases
from tests.support.tiers import one_of
from tests.support.waiting import PATIENCE_S

error_cases.load_areas()

NUMBERS: Final = {"fast": (3, 2), "ci": (12, 6), "full": (12, 6)}
LONG: Final = (100, 50)
"""Number of valid and invalid generated requests for each operation."""

DEVELOPED: Final = sorted(
    slug
    for slug, method in BY_SLUG.items()
    if CredentialKind.DEVELOPMENT in credential_kinds(method)
)
EACH: Final = pytest.mark.parametrize("slug", sorted(BY_SLUG))
A_QUARTER: Final = pytest.mark.parametrize("slug", one_of(4, sorted(BY_SLUG)))
"""A quarter in the fast tier."""
ON_BOTH: Final = pytest.mark.parametrize("served_game", KINDS, indirect=True)
# SQLite is enough for tests that vary code above the database. The tests marked `proof` use both
# databases.
ON_ONE: Final = pytest.mark.parametrize("served_game", ["sqlite"], indirect=True)
LIMIT: Final = "RATE_LIMITED"
LIMITED: Final = sorted(slug for slug, method in BY_SLUG.items() if LIMIT in implied_codes(method))
GENERAL_LIMIT: Final = {"per_second": 0.001, "burst": 1}
_RAY_ID: Final = "0123456789abcdef" * 2
_PROBLEM: Final = {"content-type": "application/problem+json", "x-ray-id": _RAY_ID}


@pytest.fixture
def _no_left_over() -> None:
    """Replaces the check of the shared data plane, because these tests start a service of their
    own.
    """


@pytest.fixture(scope="module")
def served_game_on(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> Iterator[Callable[[str], ServedGame]]:
    with contextlib.ExitStack() as stack:

        @functools.cache
        def served_game_on(kind: str) -> ServedGame:
            url, folder = databases.url(kind), tmp_path_factory.mktemp(f"game-{kind}")
            served_game = stack.enter_context(open_served_game(folder, database_url=url))
            has_file = (served_game.service.data_dir / "control" / "records.db").exists()
            assert has_file == (kind == "sqlite")
            return served_game

        yield served_game_on


@pytest.fixture(scope="module")
def served_game(
    request: pytest.FixtureRequest, served_game_on: Callable[[str], ServedGame]
) -> ServedGame:
    return served_game_on(request.param)


@pytest.fixture(scope="module")
def strict_served_game(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGame]:
    folder: Path = tmp_path_factory.mktemp("strict")
    limits = dict.fromkeys(("client", "operator", "anonymous"), GENERAL_LIMIT)
    with open_served_game(folder, limits=limits) as served_game:
        yield served_game


@pytest.fixture(scope="module")
def checker(served_game: ServedGame) -> ResponseChecker:
    return ResponseChecker(served_game.document)


@pytest.fixture(scope="module")
def schema(served_game: ServedGame) -> Any:
    url = f"http://{served_game.service.addresses['http']}/openapi.json"
    return schemathesis.openapi.from_url(url, config=_configuration())


def _configuration() -> schemathesis.Config:
    return schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})


@ON_BOTH
@A_QUARTER
def test_operation_example_succeeds(
    slug: str, served_game: ServedGame, checker: ResponseChecker
) -> None:
    _example(slug, served_game, checker)


@pytest.mark.full
@ON_ONE
@EACH
def test_shell_command_of_an_example_succeeds(slug: str, served_game: ServedGame) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the commands of the document use curl: apt-get install curl")
    scenario = served_game.scenario()
    example = scenario.example(slug)
    command = f"{curl(BY_SLUG[slug], example)} --silent --show-error --fail-with-body"
    result = subprocess.run(
        ["/bin/bash", "-c", command],
        env={
            "PATH": os.environ["PATH"],
            "HOSTING_URL": f"http://{served_game.service.addresses['http']}",
            "ORIGIN": ORIGIN,
            "TOKEN": scenario.bearer(example.token) if example.token in Scenario.kinds() else "",
        },
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, (command, result.stdout, result.stderr)


@ON_ONE
@A_QUARTER
@pytest.mark.full
def test_operation_accepts_every_declared_token_kind(
    slug: str, served_game: ServedGame, checker: ResponseChecker
) -> None:
    declared = {kind.value for kind in credential_kinds(BY_SLUG[slug])}
    kinds = declared & {*Scenario.kinds(), "origin"}
    assert kinds or declared == {"none"}
    for kind in kinds:
        code = checker.code(slug, served_game.scenario().call(slug, token=kind))
        assert code not in ("FORBIDDEN", "TOKEN_INVALID", "TOKEN_MISSING"), (kind, code)


@ON_ONE
@pytest.mark.parametrize("slug", DEVELOPED)
def test_dev_token_gets_a_mock_response_as_documented(
    slug: str, served_game: ServedGame, checker: ResponseChecker
) -> None:
    answer = ask_mock(served_game.scenario(), slug)
    assert checker.code(slug, answer) == "OK", answer.text
    check_mock(slug, answer.json())


@ON_BOTH
@A_QUARTER
@pytest.mark.full
def test_operation_reaches_every_declared_code(
    slug: str, served_game: ServedGame, checker: ResponseChecker
) -> None:
    code_counts: Counter[str] = Counter()
    for code, row in error_cases.rows_of(BY_SLUG[slug]):
        if code in code_counts and served_game.database_url is not None:
            continue
        returned = checker.code(slug, row(served_game.scenario()))
        assert returned == code, f"{slug}: the request for {code} answers {returned}"
        code_counts[code] += 1
    _require_all(slug, code_counts)


@ON_ONE
@pytest.mark.parametrize("slug", one_of(4, LIMITED))
@pytest.mark.full
def test_rate_limited_operation_returns_its_code(
    slug: str, strict_served_game: ServedGame, checker: ResponseChecker
) -> None:
    scenario = strict_served_game.scenario()
    # The rate limit comes before the lookup of ids. Real ids would use up the limit.
    example = fill_example(BY_SLUG[slug], lambda name: "none")
    for _ in range(2):
        code = checker.code(slug, _bare(scenario, slug, example))
    assert code == LIMIT, f"{slug} is limited and answers {code}"


@ON_ONE
@A_QUARTER
@pytest.mark.full
def test_generated_requests_are_answered_as_documented(
    slug: str,
    served_game: ServedGame,
    checker: ResponseChecker,
    schema: Any,
    pytestconfig: pytest.Config,
) -> None:
    numbers = NUMBERS[pytestconfig.getoption("--tier")]
    code_counts = _generated(slug, served_game, checker, schema, numbers)
    print(f"\n{slug}: {_counts(code_counts)}")


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@ON_BOTH
@EACH
def test_many_generated_requests_are_answered_as_documented(
    slug: str, served_game: ServedGame, checker: ResponseChecker, schema: Any
) -> None:
    code_counts = Counter(_example(slug, served_game, checker))
    code_counts += _generated(slug, served_game, checker, schema, LONG)
    assert code_counts["OK"], f"{slug} never succeeded: {dict(code_counts)}"
    assert code_counts.total() > LONG[0]
    print(f"\n{slug}: {_counts(code_counts)}")


@ON_ONE
@A_QUARTER
def test_documented_500_still_counts_as_a_failure(slug: str, checker: ResponseChecker) -> None:
    method = BY_SLUG[slug]
    codes = {*declared_codes(method), *implied_codes(method)}
    failures = {code for code in codes if is_failure(slug, TABLE[code].http)}
    assert failures == {"INTERNAL"}
    answer = httpx.Response(
        500, headers=_PROBLEM, content=problem_json(ServiceError("INTERNAL"), _RAY_ID)
    )
    with pytest.raises(AssertionError, match="the service failed"):
        checker.code(slug, answer)
    for code in codes - failures:
        if TABLE[code].http >= 500:
            error = ServiceError(code)
            headers = {**_PROBLEM, "retry-after": "1"}
            body = problem_json(error, _RAY_ID)
            assert checker.code(slug, httpx.Response(error.row.http, headers=headers, content=body))


def test_every_case_has_a_code_that_its_operation_declares() -> None:
    known = {
        (slug, code)
        for slug, method in BY_SLUG.items()
        for code in (*declared_codes(method), *implied_codes(method))
    }
    assert error_cases.ELSEWHERE
    assert error_cases.ROWS
    stale = sorted((error_cases.ELSEWHERE.keys() | error_cases.ROWS.keys()) - known)
    assert not stale, f"declare these in the (operation) of their protos, or drop them: {stale}"


def test_referenced_tests_exist_and_name_their_code() -> None:
    unchecked = {(code, one.test) for code, ways in CONDITIONS.items() for one in ways}
    unchecked |= {(code, one.test) for (_, code), one in error_cases.ELSEWHERE.items()}
    assert unchecked
    root = Path(__file__).resolve().parents[2]
    for code, test in sorted(unchecked):
        path, _, name = test.partition("::")
        text = (root / path).read_text()
        assert re.search(rf"\b(def|fn) {name}\(", text), f"{code}: there is no {test}"
        words = code.removeprefix("MATCHMAKER_").split("_")
        assert code in text or "".join(map(str.capitalize, words)) in text, f"{test}: no {code}"


def _example(slug: str, served_game: ServedGame, checker: ResponseChecker) -> list[str]:
    code = checker.code(slug, served_game.scenario().call(slug))
    assert code == "OK", f"the example of {slug} in proto/examples answers {code}"
    return [code]


def _bare(scenario: Scenario, slug: str, example: FilledExample) -> Any:
    method = BY_SLUG[slug]
    url = f"http://{scenario.service.addresses['http']}{method.template.format(**example.path)}"
    return scenario.service.client.request(
        method.http_method, url, headers=scenario.headers(example.token), content=example.body
    )


def _require_all(slug: str, code_counts: Counter[str]) -> None:
    method = BY_SLUG[slug]
    required = {*declared_codes(method), *implied_codes(method)}
    required -= {
        *CONDITIONS,
        LIMIT,
        *(code for row_slug, code in error_cases.ELSEWHERE if row_slug == slug),
    }
    missing = sorted(required - set(code_counts))
    others = (f"  {code} {how}" for code, how in left_to_others(method, code_counts))
    print("\n".join([f"\n{slug}: {_counts(code_counts)}", *others]))
    assert not missing, f"{slug} never answered {', '.join(missing)}"


def _counts(code_counts: Counter[str]) -> str:
    return ", ".join(f"{code} {count}" for code, count in sorted(code_counts.items()))


_CHECKS: Final = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def _generated(
    slug: str,
    served_game: ServedGame,
    checker: ResponseChecker,
    schema: Any,
    numbers: tuple[int, int],
) -> Counter[str]:
    operation = schema.find_operation_by_id(slug)
    run = _Run(slug, served_game, checker, is_repeatable=numbers != LONG)
    for mode, number in zip(
        (GenerationMode.POSITIVE, GenerationMode.NEGATIVE), numbers, strict=True
    ):
        done = 0
        # A small schema has few different requests, so the generator must start again.
        while done < number:
            before = run.count
            run.generate(operation, mode, number - done)
            if run.count == before:
                break
            done += run.count - before
        assert done or (mode is GenerationMode.NEGATIVE and not _has_input(operation)), mode
    assert not run.failures, "\n\n".join(run.failures[:5])
    return run.code_counts


def _has_input(operation: Any) -> bool:
    """Returns whether a request has parameters, or a body with a schema that refuses some values."""
    return bool(
        operation.definition.raw.get("parameters")
        or any(body.definition["schema"].keys() - {"description"} for body in operation.body)
    )


class _Run:
    def __init__(
        self, slug: str, served_game: ServedGame, checker: ResponseChecker, *, is_repeatable: bool
    ) -> None:
        self._is_repeatable = is_repeatable
        self.slug = slug
        self.code_counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.count = 0
        self._judge = checker
        self._served_game = served_game
        self._session = requests.Session()
        self._base_url = f"http://{served_game.service.addresses['http']}"

    def generate(self, operation: Any, mode: GenerationMode, number: int) -> None:
        is_valid = mode is GenerationMode.POSITIVE

        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            derandomize=self._is_repeatable,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def ask(case: Case[Any], data: st.DataObject) -> None:
            self._ask(case, data, is_valid=is_valid)

        try:
            ask()
        except schemathesis.errors.InvalidSchema:
            raise
        except Exception as error:
            if "Unsatisfiable" not in type(error).__name__:
                raise

    def _ask(self, case: Case[Any], data: st.DataObject, *, is_valid: bool) -> None:
        scenario = self._served_game.scenario()
        example = scenario.example(self.slug)
        with_real_ids(case, example, data, is_valid=is_valid)
        kinds = [kind for kind in _security(case) if kind in (*Scenario.kinds(), "origin")]
        headers = scenario.headers(data.draw(st.sampled_from(kinds)) if kinds else None)
        answer = case.call(
            base_url=self._base_url,
            headers=headers,
            session=self._session,
            timeout=PATIENCE_S,
        )
        self.count += 1
        names = {name.lower(): values[0] for name, values in answer.headers.items()}
        try:
            if answer.status_code == 404 and b'"NOT_FOUND"' in answer.content:
                assert not is_valid, "a path that exists"
                self.code_counts["no such path"] += 1
                return
            case.validate_response(answer, checks=_CHECKS)
            code = self._judge.check(self.slug, answer.status_code, names, answer.content)
        except Exception as error:  # noqa: BLE001
            self.failures.append(f"{error}\n{case.as_curl_command(headers)}")
            return
        self.code_counts[code] += 1


def _security(case: Case[Any]) -> list[str]:
    return [name for item in case.operation.definition.raw.get("security", []) for name in item]


def with_real_ids(
    case: Case[Any], example: FilledExample, data: st.DataObject, *, is_valid: bool
) -> None:
    """Replaces generated ids by existing ones, always in the path and mostly elsewhere.

    The query and body of an invalid request stay as generated.
    """
    mostly = st.sampled_from([True, True, True, False] if is_valid else [True, False])
    for name, value in example.path.items():
        if is_valid or data.draw(mostly):
            case.path_parameters[name] = value
    if is_valid and example.query and isinstance(case.query, dict):
        for name, value in example.query.items():
            if data.draw(mostly):
                case.query[name] = value
    if is_valid and example.body is not None and isinstance(case.body, dict):
        known = json.loads(example.body)
        if isinstance(known, dict):
            case.body = {
                **case.body,
                **{name: value for name, value in known.items() if data.draw(mostly)},
            }
