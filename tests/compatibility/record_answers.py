"""Records the answers of the current code to generated requests, for `test_recorded_answers.py`.

Run it at the commit to compare with: `python -m tests.compatibility.record_answers FILE`.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.compatibility.recorded_service import recorded_service
from tests.compatibility.request_generator import CorpusGenerator
from tests.compatibility.request_player import code_of

SEED: Final = 37
ROUNDS: Final = 8
DRAWS: Final = 190


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
            out.write(json.dumps([request.to_json(), answers]) + "\n")
            codes[(request.operation, request.over, code_of(answers[-1]))] += 1
            number += 1
    for key, count in sorted(codes.items()):
        print(*key, count)


if __name__ == "__main__":
    _record(Path(sys.argv[1]))
