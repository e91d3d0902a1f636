"""Records the answers of the current code to generated requests, for `test_recorded_answers.py`.

Run it at the commit to compare with: `python -m tests.compatibility.record_answers FILE`.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

from tests.compatibility.recorded_service import recorded_service
from tests.compatibility.request_generator import CorpusGenerator
from tests.compatibility.request_player import Answer, Request, code_of

FILE: Final = Path(__file__).parent / "recorded_answers.jsonl.xz"
SEED: Final = 37
ROUNDS: Final = 17
DRAWS: Final = 180
_DEFAULTS: Final = {one.name: one.default for one in fields(Request)}


def stored() -> Iterator[tuple[Request, list[Answer]]]:
    with lzma.open(FILE, "rt") as lines:
        for line in lines:
            request, answers = json.loads(line)
            yield Request(**request), answers


def _record(file: Path) -> None:
    codes: Counter[tuple[str, ...]] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        recorded_service(Path(folder)) as player,
        lzma.open(file, "wt", preset=9 | lzma.PRESET_EXTREME) as out,
    ):
        generator = CorpusGenerator(SEED, player.players)
        number = 0
        for request in generator.requests(ROUNDS, DRAWS):
            answers = player.play(number, request)
            if answers[-1].get("status", 408) == 408:
                # The service waited for the rest of the request, or a name has no value yet.
                continue
            changed = {
                name: value for name, value in asdict(request).items() if value != _DEFAULTS[name]
            }
            out.write(json.dumps([changed, answers]) + "\n")
            codes[(request.operation, request.over, code_of(answers[-1]))] += 1
            number += 1
    for key, count in sorted(codes.items()):
        print(*key, count)


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
