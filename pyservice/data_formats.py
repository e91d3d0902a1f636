"""Formats of the files in a data directory, and the releases that can read them.

`formats.json` names the formats that may be written, and those of the release before. A release
with other formats changes nothing until `pyservice upgrade commit` allows it. So until then, the
release before can go on.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyservice._native import version
from pyservice.durable_files import write_file
from pyservice.timestamps import now_ms, rfc3339

FILE: Final = "formats.json"
UNFINISHED_RESTORE: Final = "unfinished-restore"
"""File that a directory has while `pyservice restore` writes it."""
RECORDS_REVISION: Final = "0018"
FEED_FORMAT: Final = 1

_FORMATS: Final = {"journal": 2, "records": int(RECORDS_REVISION), "feed": FEED_FORMAT, "runs": 1}
"""The journal's format is that of its segments. `runs` is the version of all run folders together.

A run outlives a restart of the service, so the next release reads a folder that an earlier keeper still
writes. A release with another number starts only after `pyservice upgrade commit`, and must read both
formats until the last earlier run is removed. A release with a lower number refuses the directory.
"""
CONTROL_KEYS: Final = "control/keys.json"
KEY_FILES: Final = ("keys.json", CONTROL_KEYS)
"""Keys of the data plane and of the control plane."""


class DataMissing(Exception):
    """The folder lacks the data of a service. The message says what to do."""


class FormatsRefused(Exception):
    """This release must not change the data directory. The message says what to do."""


class _Release(NamedTuple):
    name: str
    formats: dict[str, int]

    def unreadable(self, formats: dict[str, int]) -> list[str]:
        """Returns the `formats` that the release cannot read."""
        return [
            f"{part} {found} (it reads {self.formats.get(part, 'none')})"
            for part, found in formats.items()
            if self.formats.get(part) != found
        ]

    def is_newer_than(self, other: _Release) -> bool:
        """Returns whether a format is newer than that of the other release."""
        return any(found > other.formats.get(part, 0) for part, found in self.formats.items())


_FIRST: Final = _Release("0.1.0", {"journal": 1, "records": 3, "feed": 1, "runs": 1})
"""It wrote no `formats.json`."""


class _Noted(NamedTuple):
    release: _Release
    before: _Release | None
    committed_ms: int


def require_data(data_dir: Path) -> None:
    """Raises DataMissing if no service has used the folder, and OSError if it cannot be read."""
    # A new service writes FILE first.
    if not any((data_dir / name).exists() for name in (FILE, *KEY_FILES)):
        raise DataMissing(
            f"{data_dir} is no data directory of a service: give the --data-dir of `pyservice serve`"
        )


def require_keys(data_dir: Path) -> None:
    """Raises DataMissing if the folder lacks keys, so that tokens and links of a service would end."""
    for name in KEY_FILES:
        if not (data_dir / name).exists():
            raise DataMissing(
                f"{data_dir / name} is missing, and without it tokens and links of the service end. "
                "Nothing was changed: use the data directory of the earlier service, or restore its "
                "backup into a new one, without a database URL"
            )


def has_unfinished_restore(data_dir: Path) -> bool:
    return (data_dir / UNFINISHED_RESTORE).exists()


def require_restored(data_dir: Path) -> None:
    """Raises FormatsRefused if the directory has only a part of a backup."""
    if has_unfinished_restore(data_dir):
        raise FormatsRefused(f"{data_dir} has an unfinished restore: run pyservice restore again")


def note_formats(data_dir: Path) -> None:
    """Notes the formats of this release in a directory without data. Raises OSError."""
    _note(data_dir, _Noted(_this_release(), None, 0))


def require_formats(data_dir: Path) -> None:
    """Lets this release change the directory. Notes its formats in a new directory.

    Raises FormatsRefused and OSError.
    """
    require_restored(data_dir)
    noted, this = _noted(data_dir), _this_release()
    if noted is None:
        note_formats(data_dir)
        return
    found = noted.release
    if found.name == this.name and found.formats == this.formats:
        return
    if found.is_newer_than(this):
        raise FormatsRefused(_newer_release(data_dir, found))
    unreadable = found.unreadable(this.formats)
    if unreadable:
        raise FormatsRefused(
            f"{data_dir} was written by release {found.name}, which cannot read what this release "
            f"writes: {', '.join(unreadable)}. Nothing was changed, and {found.name} can go on. To upgrade, keep "
            f"{_way_back(found, data_dir)}, which alone brings it back, and run pyservice upgrade commit "
            f"--data-dir {data_dir}"
        )
    # With the formats unchanged, the name is for `rollback-check` only. A data plane of another user
    # must not replace a file of the control plane, which notes the name at its own start.
    with contextlib.suppress(PermissionError):
        _note(data_dir, _Noted(this, found, 0))


def commit_upgrade(data_dir: Path) -> str:
    """Allows the formats of this release. Returns what the operator should know.

    Raises DataMissing, FormatsRefused and OSError.
    """
    noted, this = _noted_by_service(data_dir), _this_release()
    if noted.release.is_newer_than(this):
        raise FormatsRefused(_newer_release(data_dir, noted.release))
    if noted.release.formats == this.formats:
        return f"nothing to commit: {data_dir} has the formats of this release"
    _note(data_dir, _Noted(this, noted.release, now_ms()))
    return f"committed: the next start upgrades {data_dir} from {noted.release.name} to {this.name}"


def rollback_losses(data_dir: Path) -> tuple[bool, str]:
    """Returns whether the release before can read the directory, and a text for the operator.

    For a directory of a newer release, "the release before" is this one. Raises DataMissing and OSError.
    """
    release, before, committed_ms = _noted_by_service(data_dir)
    this = _this_release()
    if release.is_newer_than(this):
        return False, _newer_release(data_dir, release)
    if release.name != this.name:
        return True, f"nothing was changed: release {release.name} goes on, and nothing is lost"
    if before is None:
        return True, f"release {release.name} made {data_dir}: there is no release before"
    unreadable = before.unreadable(release.formats)
    if not unreadable:
        return True, f"release {before.name} can read {data_dir}: a rollback loses nothing"
    return False, (
        f"release {before.name} cannot read {', '.join(unreadable)}. It needs {_way_back(before, data_dir)}, from "
        f"before the upgrade ({rfc3339(committed_ms)}). All changes since then are lost: games, "
        "versions, tokens, revocations, lobbies and players"
    )


def _way_back(release: _Release, data_dir: Path) -> str:
    # The first release has no backups.
    backup = "" if release.name == _FIRST.name else "a backup or "
    return f"{backup}a copy of {data_dir} and of the database"


def _newer_release(data_dir: Path, release: _Release) -> str:
    return (
        f"{data_dir} was written by release {release.name}: use that release, or a newer one "
        "(pyservice rollback-check of that release says what a rollback loses)"
    )


def _this_release() -> _Release:
    return _Release(version, _FORMATS)


def _noted_by_service(data_dir: Path) -> _Noted:
    require_data(data_dir)
    noted = _noted(data_dir)
    assert noted is not None
    return noted


def _noted(data_dir: Path) -> _Noted | None:
    """Returns None for a directory without data. Raises OSError."""
    # A new service writes the file before its keys.
    has_keys = any((data_dir / name).exists() for name in KEY_FILES)
    path = data_dir / FILE
    try:
        return _parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return _Noted(_FIRST, None, 0) if has_keys else None
    except (ValueError, KeyError, TypeError):
        raise OSError(f"{path} is damaged: restore it from a backup") from None


def _parse(content: dict[str, Any]) -> _Noted:
    before = content["before"]
    return _Noted(
        _Release(**content["release"]),
        None if before is None else _Release(**before),
        int(content["committed_ms"]),
    )


def _note(data_dir: Path, noted: _Noted) -> None:
    content = {
        "release": noted.release._asdict(),
        "before": None if noted.before is None else noted.before._asdict(),
        "committed_ms": noted.committed_ms,
    }
    # The planes can be processes of different users.
    write_file(data_dir / FILE, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)
