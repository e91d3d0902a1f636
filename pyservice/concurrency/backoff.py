"""Back-off: growing delays between the attempts of a retry loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays after consecutive failures. The last of `delays_s` repeats until a reset."""

    delays_s: Sequence[float]
    failures: int = 0

    def next_s(self, new_failures: int = 1) -> float:
        self.failures += new_failures
        return self.delays_s[min(self.failures, len(self.delays_s)) - 1]

    def reset(self) -> None:
        self.failures = 0


def doubling(first_s: float, longest_s: float) -> tuple[float, ...]:
    if first_s >= longest_s:
        return (longest_s,)
    return (first_s, *doubling(first_s * 2, longest_s))
