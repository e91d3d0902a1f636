"""Commands that need no running service, such as `check-config` and `takeover`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pyservice import data_formats
from pyservice.cli.cluster_check import cluster_report
from pyservice.cli.configuration_check import certificate_report, check_settings, feed_problems
from pyservice.cli.service_database import (
    described_database,
    open_service_database,
    require_records,
)
from pyservice.edge_guard.configuration import edge_guard_report
from pyservice.errors import ServiceError
from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable, stopped_service
from pyservice.process.listening_sockets import ActivationFailed, activated_listeners
from pyservice.settings import ConfigurationReport, Settings, SettingsError, load
from pyservice.settings.file_permissions import readable_secrets
from pyservice.storage.database import Database, DatabaseUnusable
from pyservice.storage.migrations import migrate
from pyservice.storage.ownership import Instance, claim, take_over


def check_configuration(flags: Mapping[str, object], config: Path | None) -> ConfigurationReport:
    """Checks the settings and the files that they name, and starts nothing."""
    try:
        settings = load(flags, config)
    except SettingsError as error:
        problems = [str(problem) for problem in error.problems]
        wrong = {problem.name.partition(".")[0] for problem in error.problems}
        if error.usable is not None:
            if wrong.isdisjoint(("edge", "domains", "data_dir")):
                problems += edge_guard_report(error.usable).refusals
            if "tls" not in wrong:
                problems += certificate_report(error.usable).refusals
            problems += feed_problems(error.usable, wrong)
        secrets = readable_secrets(config)
        return ConfigurationReport(problems, [] if secrets is None else [secrets])
    report, cluster = check_settings(settings, config), cluster_report(settings)
    problems = report.refusals + feed_problems(settings) + _activation_problems(settings)
    return ConfigurationReport(problems + cluster.problems, report.warnings + cluster.warnings)


def _activation_problems(settings: Settings) -> list[str]:
    try:
        activated_listeners(settings)
    except ActivationFailed as failed:
        return failed.problems
    return []


def migrate_database(settings: Settings) -> int:
    """Migrates the database and prints its revision. Returns the exit status."""

    async def work(database: Database) -> str:
        data_formats.require_formats(settings.data_dir)
        await claim(database, Instance.of_folder(settings.data_dir), _fail_without_owner)
        await migrate(database, is_allowed=True)
        return data_formats.RECORDS_REVISION

    return _change_database("migrate", settings, work)


def commit_upgrade(settings: Settings) -> int:
    """Allows this release to write its formats, and prints so. Returns the exit status."""
    try:
        with stopped_service(settings.data_dir):
            print(data_formats.commit_upgrade(settings.data_dir))
    except (DirectoryUnusable, data_formats.FormatsRefused, OSError) as error:
        print(f"pyservice upgrade commit: {error}", file=sys.stderr)
        return 1
    return 0


def check_rollback(settings: Settings) -> int:
    """Prints what a rollback to the release before loses. Returns 1 if it is impossible."""
    try:
        is_possible, text = data_formats.rollback_losses(settings.data_dir)
    except OSError as error:
        print(f"pyservice rollback-check: {error}", file=sys.stderr)
        return 1
    print(text)
    return 0 if is_possible else 1


def take_over_database(settings: Settings) -> int:
    """Makes the service of this data directory the owner of the database. Returns the exit status."""

    async def work(database: Database) -> str:
        data_formats.require_formats(settings.data_dir)
        instance = Instance.of_folder(settings.data_dir)
        owner, before = await take_over(database, instance)
        lines = [
            f"database: {described_database(settings, database)}",
            f"owner epoch {owner.epoch}: {owner}",
        ]
        if before is not None:
            lines.append(f"before: {before}; it exits at its next change")
        return "\n".join(lines)

    return _change_database("takeover", settings, work)


def _fail_without_owner() -> NoReturn:
    raise DatabaseUnusable("another service owns the database now")


def _change_database(
    command: str, settings: Settings, work: Callable[[Database], Coroutine[Any, Any, str]]
) -> int:
    """Prints the result of `work` on the database of a stopped service. Returns the exit status."""
    try:
        require_records(settings)
        lock = DirectoryLock.take(settings.data_dir / "control")
        try:
            print(asyncio.run(_with_database(settings, work)))
        finally:
            lock.release()
    except (
        DirectoryUnusable,
        DatabaseUnusable,
        data_formats.FormatsRefused,
        ServiceError,
        OSError,
    ) as error:
        print(f"pyservice {command}: {error}", file=sys.stderr)
        return 1
    return 0


async def _with_database(
    settings: Settings, work: Callable[[Database], Coroutine[Any, Any, str]]
) -> str:
    database = open_service_database(settings)
    try:
        return await work(database)
    finally:
        await database.close()
