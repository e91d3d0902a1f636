"""The OpenAPI document of an earlier release."""

from __future__ import annotations

import json
import lzma
from typing import Any, Final

from tests.support.tracked_files import ROOT

RELEASE: Final = "0.1.0"


def stored_openapi() -> Any:
    packed = ROOT / f"tests/compatibility/openapi-{RELEASE}.json.xz"
    return json.loads(lzma.decompress(packed.read_bytes()))
