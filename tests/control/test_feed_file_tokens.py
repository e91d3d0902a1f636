"""Token commands for a namespace of a feed file, in a service with a control plane."""

from __future__ import annotations

import pytest

from tests.support.command_line import error_output
from tests.support.full_service import FullService
from tests.support.unknown_namespace import UNKNOWN_NAMESPACE
from tests.support.unknown_namespace import full_service as full_service

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["public", "environment"])
async def test_namespace_without_a_record_gets_no_token(
    full_service: FullService, kind: str
) -> None:
    words = ("token", "create", "--kind", kind, "--namespace", UNKNOWN_NAMESPACE["namespace_id"])
    assert "NAMESPACE_NOT_FOUND: " in await error_output(full_service.data_dir, *words)
