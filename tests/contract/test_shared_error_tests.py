"""Errors that one test outside of the sweeps covers for several operations. `-s` prints them."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.contract import error_cases
from tests.contract.scenario import BY_SLUG
from tests.contract.service_errors import SharedErrorTest, is_passed, left_to_others

pytestmark = pytest.mark.anyio

error_cases.load_areas()


def shown_for_all() -> dict[tuple[str, SharedErrorTest], set[str]]:
    operations: defaultdict[tuple[str, SharedErrorTest], set[str]] = defaultdict(set)
    for slug, method in BY_SLUG.items():
        codes = {code for row_slug, code in error_cases.ROWS if row_slug == slug}
        for code, one in left_to_others(method, codes):
            if one.reason:
                operations[code, one].add(slug)
    return operations


def _code_and_test(item: tuple[tuple[str, SharedErrorTest], set[str]]) -> tuple[str, str]:
    (code, one), _ = item
    return code, one.test


async def test_shared_tests_cover_only_unreachable_codes() -> None:
    """Several operations share one test only for an error that requests alone cannot cause.

    These are errors of the data plane, INTERNAL, STORAGE_FULL of operations that write nothing, and
    QUOTA_EXCEEDED, because all tests share one group with large quotas.
    """
    slugs_by_code: defaultdict[str, set[str]] = defaultdict(set)
    for (code, one), slugs in sorted(shown_for_all().items(), key=_code_and_test):
        print(f"\n{code}, {len(slugs)} operations, {one}\n  {', '.join(sorted(slugs))}")
        slugs_by_code[code] |= slugs
    assert slugs_by_code.pop("INTERNAL") == BY_SLUG.keys()
    assert slugs_by_code.pop("QUOTA_EXCEEDED")
    of_data_plane = {slug for slug, method in BY_SLUG.items() if not is_passed(method)}
    idle = {slug for slug in BY_SLUG if slug.startswith("validate_")}
    assert slugs_by_code.pop("STORAGE_FULL") <= of_data_plane | idle
    assert slugs_by_code.keys() == {"DEADLINE_EXCEEDED", "OVERLOADED", "SHUTTING_DOWN"}
    for code, slugs in slugs_by_code.items():
        assert slugs <= of_data_plane, code
