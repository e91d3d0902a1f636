"""Command `compact`: writes an image of the closed segments of a journal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyservice.auth import keyring
from pyservice.dataplane import engine
from pyservice.dataplane.journal_compaction import NO_SPACE_STATUS


def main(words: Sequence[str]) -> int:
    """Returns 0 when the image is written, 28 (ENOSPC) on a full disk, else 1."""
    defaults = engine.EngineLimits()
    parser = argparse.ArgumentParser("pyservice compact", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--segment-bytes", type=int, default=defaults.segment_bytes)
    parser.add_argument("--boot-id-path", type=Path, default=defaults.boot_id_path)
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process does")
    given = parser.parse_args(words)
    limits = engine.EngineLimits(segment_bytes=given.segment_bytes, boot_id_path=given.boot_id_path)
    try:
        ring = keyring.load(given.data_dir)
        lsn = engine.compact(given.data_dir / "journal", ring, limits, given.parent_pid)
    except (keyring.KeyringError, engine.OpenFailed, OSError) as error:
        print(f"pyservice compact: {error}", file=sys.stderr)
        is_no_space = isinstance(error, OSError) and error.errno == NO_SPACE_STATUS
        return NO_SPACE_STATUS if is_no_space else 1
    print(lsn)
    return 0
