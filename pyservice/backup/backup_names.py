"""Names of backups: time and service, for example `20270115T080000.000Z-1f0c2d3e`.

A service stores and removes only files with its own id at the end of their names. So two services with one
target cannot damage each other's backups.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyservice.backup.target import BackupFailed
from pyservice.durable_files import write_file
from pyservice.storage.ownership import INSTANCE_FILE, Instance

REPLACED_FILE: Final = "control/replaced-services.json"
_TIME: Final = "%Y%m%dT%H%M%S.%f"
_TIME_LENGTH: Final = 19
"""Length of a time up to the millisecond."""
_ID_LENGTH: Final = 8


def service_id(data_dir: Path) -> str:
    """Returns the id of a service in the names of its backups. Raises BackupFailed and OSError."""
    file = data_dir / "control" / INSTANCE_FILE
    if not file.exists():
        raise BackupFailed(f"{file} is missing: start the service first")
    return Instance.of_folder(data_dir).instance_id[:_ID_LENGTH]


def service_of(name: str) -> str:
    return name.rpartition("-")[2]


def new_name(now: datetime, service: str, names: Sequence[str]) -> str:
    """Returns a name that is later than all `names`, even if the clock has gone back."""
    if names:
        newest = datetime.strptime(names[-1][:_TIME_LENGTH], _TIME).replace(tzinfo=UTC)
        now = max(now, newest + timedelta(milliseconds=1))
    return f"{now.strftime(_TIME)[:_TIME_LENGTH]}Z-{service}"


def note_replaced(data_dir: Path, names: Sequence[str]) -> None:
    """Lets a restored service go on with the target that has `names`. Raises OSError."""
    services = sorted({service_of(name) for name in names})
    write_file(data_dir / REPLACED_FILE, json.dumps(services).encode() + b"\n")


def require_own(data_dir: Path, service: str, place: str, names: Sequence[str]) -> None:
    """Refuses a target if its newest backup is of a service that this one does not replace.

    Otherwise, a restore could take the backup of the wrong service. Raises BackupFailed.
    """
    if names and service_of(names[-1]) not in {service, *_replaced(data_dir)}:
        raise BackupFailed(
            f"the newest backup of {place}, {names[-1]}, is of another service: "
            "choose another target for this one"
        )


def _replaced(data_dir: Path) -> list[str]:
    file = data_dir / REPLACED_FILE
    try:
        return [str(service) for service in json.loads(file.read_bytes())]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError):
        raise BackupFailed(f"{file} is damaged: choose another target, and remove it") from None
