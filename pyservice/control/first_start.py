"""What the first start of a service makes: an owner, a group, and one cloud token in a file that only the owner reads
(decisions 3). Every step is repeated until all of them are done, so a crash between two of them leaves nothing half.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyservice.control.changes import now_ms
from pyservice.control.tokens import new_secret
from pyservice.durable import write_file
from pyservice.ids import RecordIds
from pyservice.storage import groups, numbers, tokens
from pyservice.storage.database import Conflict, Database

TOKEN_FILE: Final = "owner.token"
_OWNER: Final = "Owner"
_GROUP: Final = "Developers"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns the service."""

    group_id: str
    token_file: Path
    source_epoch: int


async def ensure_owner(database: Database, ids: RecordIds, folder: Path) -> Owner:
    """The owner's group, made when there is none. Raises OSError, and ServiceError when the database is away.

    The token is in its file before its hash is in the records: whoever finds the records finds the file.
    """
    path = folder / TOKEN_FILE
    async with database.read() as tx:
        epoch = await numbers.get(tx, numbers.SOURCE_EPOCH)
        first = await groups.first(tx)
    if epoch is not None and first is not None:
        return Owner(first.group_id, path, epoch)
    token = _kept(path)
    if token is None:
        secret = new_secret("cloud")
        token = secret.token
        write_file(path, token.encode() + b"\n", mode=0o600)
    now = now_ms()
    identity_id, group_id = ids.new(), ids.new()
    try:
        async with database.write() as tx:
            # First: of two services that start on one database at once, one goes on.
            await numbers.add(tx, numbers.SOURCE_EPOCH, now)
            await groups.add_identity(tx, identity_id, _OWNER, now)
            await groups.add(tx, group_id, _GROUP, identity_id, now)
            sha256 = hashlib.sha256(token.encode()).digest()
            await tokens.add_cloud(tx, ids.new(), sha256, identity_id, None, None, now)
    except Conflict:
        # The other one made the owner, and this token is nobody's.
        path.unlink()
        return await ensure_owner(database, ids, folder)
    return Owner(group_id, path, now)


def _kept(path: Path) -> str | None:
    """The token of a first start that was interrupted. Raises OSError when others could read it."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if mode & 0o077:
        os.chmod(path, 0o600)
    text = path.read_text().strip()
    return text if text.startswith("cloud_") else None
