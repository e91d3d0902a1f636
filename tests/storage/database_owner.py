"""Owner of a database that inserts numbered rows. It prints each point of its work.

Of several writers, none waits. A single writer waits for a line at each point.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path
from typing import NoReturn

from sqlalchemy import text

from pyservice.errors import ServiceError
from pyservice.observability.logging import configure_logging
from pyservice.storage.database import Transaction, open_database
from pyservice.storage.ownership import Instance, claim, take_over

LOST = 3
"""Exit status of an owner that lost its database."""
_INSERT = text("INSERT INTO changes (owner, number) VALUES (:owner, :number)")


def lose() -> NoReturn:
    os._exit(LOST)


def report(point: str, number: int) -> None:
    # One write, so that the test reads whole lines of a killed process.
    os.write(1, f"{point} {number}\n".encode())


async def wait_for_line() -> None:
    if not await asyncio.to_thread(sys.stdin.readline):
        # The test is over.
        os._exit(0)


async def main(url: str, data_dir: Path, writers: int) -> None:
    async def reach(point: str, number: int) -> None:
        report(point, number)
        if writers == 1:
            await wait_for_line()

    async def change(tx: Transaction, number: int) -> None:
        await reach("locked", number)
        await tx.run(_INSERT, {"owner": epoch, "number": number})
        await reach("inserted", number)

    async def write() -> None:
        for number in numbers:
            try:
                async with database.write() as tx:
                    await change(tx, number)
            except ServiceError:
                report("failed", number)
            else:
                await reach("answered", number)

    await wait_for_line()
    database = open_database(url, data_dir)
    await take_over(database, Instance.of_folder(data_dir))
    epoch = (await claim(database, Instance.of_folder(data_dir), lose)).epoch
    report("owner", epoch)
    numbers = itertools.count(1)
    await asyncio.gather(*(write() for _ in range(writers)))


if __name__ == "__main__":
    configure_logging()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
