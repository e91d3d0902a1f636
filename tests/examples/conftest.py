"""Fixtures for the tests of the examples. The examples are imported from the repository root."""

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
