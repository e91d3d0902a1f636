"""Result of reading an archive: the reader accepts it, or refuses it with a reason."""

from __future__ import annotations

import collections
from collections.abc import Iterable

import pytest

from pyservice.runtime.archive_reader import read_archive
from pyservice.runtime.archive_rules import BadArchive, FolderRules, Rules, SizeAllowance


def blocks(content: bytes, step: int = 1 << 16) -> Iterable[bytes]:
    return (content[at : at + step] for at in range(0, len(content), step))


def judge(
    content: bytes, compression: str = "none", step: int = 1 << 16, rules: Rules | None = None
) -> None:
    allowance = SizeAllowance(len(content))
    reading = read_archive(blocks(content, step), compression, allowance, rules or FolderRules())
    collections.deque(reading, maxlen=0)


def refusal(content: bytes, compression: str = "none", rules: Rules | None = None) -> BadArchive:
    with pytest.raises(BadArchive) as caught:
        judge(content, compression, rules=rules)
    return caught.value
