"""Path of the keeper, the static program that runs game servers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

KEEPER_BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-keeper"
