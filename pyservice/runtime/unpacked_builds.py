"""Unpacked builds of this node. The runs of a build share its folder read-only.

A folder in `builds/` is a complete build. Folders of unfinished and removed builds have suffixes. A
power loss can damage the files, so the service unpacks builds again after a reboot.

Under a root service, the files of images and bundles belong to the user ids of containers. The
names of their folders therefore end with the first of these ids, such as `<build id>.2100000`. With
other ids, the service unpacks them again, and running containers keep the earlier folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from pyservice.concurrency.fair_queue import FairQueue
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.durable_files import is_disk_full
from pyservice.observability.logging import get_logger
from pyservice.runtime.build_manifests import (
    SERVER_JSON,
    SERVER_JSON_MAX_BYTES,
    BadManifest,
    read_server_json,
)
from pyservice.runtime.build_worker import NoDiskSpace, WorkerFailed, unpack_build
from pyservice.runtime.filesystem import remove_tree
from pyservice.runtime.root_filesystem import (
    PROGRAM_JSON,
    ContainerProgram,
    container_root_uid,
    path_words,
)
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS

UNUSED_RETENTION_S: Final = 24 * 3600.0
UNPACKING_MAX: Final = 2
"""Limit of concurrent unpackings. Each uses a whole core."""
UNPACKING_TIMEOUT_S: Final = 30 * 60.0
"""Timeout of an unpacking in seconds. Without it, a stuck upload would keep its permit forever."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_UNFINISHED: Final = ".unpacking"
_REMOVED: Final = ".removed"

_log = get_logger("runtime")


class BuildUnusable(Exception):
    pass


@dataclass(frozen=True, slots=True)
class UnpackedBuild:
    root: Path
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: Path = Path("/")
    args: Sequence[str] = ()
    contained: ContainerProgram | None = None
    """Program of a build that runs in a container. Command and workdir are then paths inside."""
    scratch_mb: int = 0


class BuildSource(NamedTuple):
    kind: str
    compression: str
    sha256: str | None
    content: AsyncIterator[bytes]
    content_length: int
    image_tag: str | None = None


class FetchBuild(Protocol):
    async def __call__(self, game_id: str, build_id: str) -> BuildSource: ...


async def is_never_deleted(build_id: str) -> bool:
    return False


class UnpackedBuilds:
    def __init__(
        self,
        folder: Path,
        fetch: FetchBuild,
        reserve_bytes: int,
        container_user_ids: range = DEFAULT_CONTAINER_USER_IDS.numbers,
    ) -> None:
        self._folder = folder
        self._fetch = fetch
        self._reserve_bytes = reserve_bytes
        self._root_uid = container_root_uid(container_user_ids)
        self._unpacking: SingleFlight[str, UnpackedBuild] = SingleFlight()
        self._queue = FairQueue(UNPACKING_MAX, 1)
        self._threads = ThreadPoolExecutor(UNPACKING_MAX, thread_name_prefix="unpacking")
        self._builds: dict[str, UnpackedBuild] = {}
        self._used_ids: set[str] = set()

    def get_cached(self, build_id: str) -> UnpackedBuild | None:
        build = self._builds.get(build_id)
        if build is not None:
            self.mark_used(build_id)
        return build

    def recover(self) -> None:
        """Creates the folder for builds.

        Removes unfinished builds, and builds that were unpacked before the last reboot.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for folder in list(self._folder.iterdir()):
            try:
                if folder.suffix == _UNFINISHED or (
                    folder.suffix != _REMOVED and not _is_whole(folder)
                ):
                    _mark_removed(folder)
            except OSError as error:
                # A run may use this build. The next request checks it again.
                _log.warning("build could not be read", build_id=folder.name, error=str(error))

    async def get(self, game_id: str, build_id: str) -> UnpackedBuild:
        """Returns the unpacked build, and unpacks it first if needed.

        Concurrent calls share one unpacking. If all of them are cancelled, a queued build is not
        unpacked, but an unpacking that has begun continues. Raises BuildUnusable, NoDiskSpace,
        OSError, and errors of the build's download.
        """
        cached = self.get_cached(build_id)
        if cached is not None:
            return cached
        return await self._unpacking.run(build_id, lambda: self._prepare(game_id, build_id))

    async def _prepare(self, game_id: str, build_id: str) -> UnpackedBuild:
        folder = self._whole_folder(build_id)
        if folder is None:
            if self._queue.is_full((None, game_id)):
                _log.info(
                    "build waits to be unpacked",
                    build_id=build_id,
                    game_id=game_id,
                    reason=f"{UNPACKING_MAX} are unpacked at one time, and one of each game",
                )
            async with self._queue.permit(None, game_id):
                self._unpacking.keep(build_id)
                folder = await self._in_time(game_id, build_id)
        self._touch(build_id)
        build = self._builds[build_id] = _read_unpacked(folder)
        return build

    def _folder_of(self, build_id: str, *, is_container: bool) -> Path:
        is_owned = is_container and self._root_uid is not None
        return self._folder / (f"{build_id}.{self._root_uid}" if is_owned else build_id)

    def _whole_folder(self, build_id: str) -> Path | None:
        for is_container in (True, False):
            folder = self._folder_of(build_id, is_container=is_container)
            if _is_whole(folder) and not self._is_outdated(folder):
                return folder
        return None

    def _is_outdated(self, folder: Path) -> bool:
        """Returns whether the files belong to user ids that containers do not have any more."""
        if self._root_uid is None or not (folder / PROGRAM_JSON).exists():
            return False
        return folder.suffix != f".{self._root_uid}"

    async def _in_time(self, game_id: str, build_id: str) -> Path:
        limit = asyncio.timeout(UNPACKING_TIMEOUT_S)
        try:
            async with limit:
                folder = await self._unpack(game_id, build_id)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BuildUnusable(
                f"the build was not unpacked within {UNPACKING_TIMEOUT_S / 60:.0f} min"
            ) from None
        _log.info("build unpacked", build_id=build_id)
        return folder

    async def _unpack(self, game_id: str, build_id: str) -> Path:
        source = await self._fetch(game_id, build_id)
        fresh = self._folder / f"{build_id}{_UNFINISHED}"
        try:
            await self._in_thread(lambda: _create_folder(fresh))
            await self._write_unpacked(source, fresh)
            is_container = _read_unpacked(fresh).contained is not None
            folder = self._folder_of(build_id, is_container=is_container)
            _publish(fresh, folder)
        except BaseException as error:
            await self._in_thread(lambda: shutil.rmtree(fresh, ignore_errors=True))
            if isinstance(error, OSError) and is_disk_full(error):
                raise NoDiskSpace(str(error)) from None
            raise
        return folder

    def _in_thread(self, work: Callable[[], object]) -> asyncio.Future[object]:
        """Runs work in dedicated threads, because it can take minutes on a slow disk."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def mark_used(self, build_id: str) -> None:
        self._used_ids.add(build_id)

    def _write_used(self) -> None:
        used_ids, self._used_ids = self._used_ids, set()
        for build_id in used_ids:
            self._touch(build_id)

    def _touch(self, build_id: str) -> None:
        for is_container in (True, False):
            with contextlib.suppress(OSError):
                os.utime(self._folder_of(build_id, is_container=is_container))

    async def _write_unpacked(self, source: BuildSource, folder: Path) -> None:
        blocks = _uploaded_blocks(source)
        sizes = (source.content_length, self._reserve_bytes)
        try:
            report = await unpack_build(
                folder,
                source.kind,
                source.compression,
                *sizes,
                source.image_tag,
                blocks,
                self._root_uid,
            )
        except WorkerFailed as error:
            raise BuildUnusable(str(error)) from None
        if (problem := report.problem) is not None:
            raise BuildUnusable(
                f"{problem.entry!r} {problem.reason}" if problem.entry else problem.reason
            )
        if source.sha256 is not None and report.sha256 != source.sha256:
            raise BuildUnusable(
                "the stored file is damaged, because its SHA-256 differs: upload it as a new build"
            )

    def without_paths(self, message: str) -> str:
        return re.sub(rf"{re.escape(str(self._folder))}/[^/]+/root/", "", message)

    async def remove_unused(
        self,
        used: Callable[[], Collection[str]],
        *,
        is_full: bool,
        is_deleted: Callable[[str], Awaitable[bool]] = is_never_deleted,
    ) -> None:
        """Removes builds that no run uses: old, deleted, or with the user ids of an earlier setting.

        A build is old if no run has used it for a day. If the disk `is_full`, each unused build is.
        `used` returns the IDs of builds in use, and is called again before each removal. Raises
        OSError, and errors of `is_deleted`.
        """
        self._write_used()
        set_aside, unused, recent = await asyncio.to_thread(self._removable, is_full)
        for folder in set_aside:
            await asyncio.to_thread(remove_tree, folder)
        for folder in recent:
            build_id = _build_id(folder)
            if build_id not in used() and await is_deleted(build_id):
                unused.append(folder)
        for folder in unused:
            build_id = _build_id(folder)
            if build_id in used() or build_id in self._unpacking:
                continue
            # The next request unpacks the build again. A partly removed build is never used.
            self._builds.pop(build_id, None)
            try:
                folder = _mark_removed(folder)
            except OSError as error:
                _log.warning("build could not be removed", build_id=build_id, error=str(error))
            else:
                await asyncio.to_thread(remove_tree, folder)

    def _removable(self, is_full: bool) -> tuple[list[Path], list[Path], list[Path]]:
        """Returns the removed folders, the folders to remove if no run uses them, and the others."""
        set_aside, old, recent = [], [], []
        for folder in self._folder.iterdir():
            if folder.suffix == _REMOVED:
                set_aside.append(folder)
            elif folder.suffix != _UNFINISHED:
                with contextlib.suppress(FileNotFoundError):
                    is_old = time.time() - folder.stat().st_mtime > UNUSED_RETENTION_S
                    if is_full or is_old or self._is_outdated(folder):
                        old.append(folder)
                    else:
                        recent.append(folder)
        return set_aside, old, recent


def _build_id(folder: Path) -> str:
    return folder.name.partition(".")[0]


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / "boot_id").read_text() == _boot_id()
    except FileNotFoundError:
        return False


def _publish(fresh: Path, folder: Path) -> None:
    (fresh / "boot_id").write_text(_boot_id())
    if folder.exists():
        # This build is of an earlier boot and could not be removed at the start.
        _mark_removed(folder)
    fresh.rename(folder)


def _mark_removed(folder: Path) -> Path:
    renamed = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}{_REMOVED}")
    folder.rename(renamed)
    return renamed


async def _uploaded_blocks(source: BuildSource) -> AsyncIterator[bytes]:
    try:
        async for block in source.content:
            yield block
    except FileNotFoundError as error:
        _log.error("an object of a build is missing", error=str(error))
        sentence = "the file that was uploaded is missing in the service's storage"
        raise BuildUnusable(f"{sentence}: upload it as a new build") from None


def _create_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "root").mkdir(parents=True, mode=0o755)


def _read_unpacked(folder: Path) -> UnpackedBuild:
    root = folder / "root"
    with contextlib.suppress(FileNotFoundError):
        inside = ContainerProgram(**json.loads((folder / PROGRAM_JSON).read_bytes()))
        return UnpackedBuild(
            root,
            inside.command,
            inside.env,
            Path(inside.workdir),
            inside.args,
            inside,
            inside.scratch_mb,
        )
    path = root / SERVER_JSON
    content = None
    if path.is_file() and not path.is_symlink():
        with path.open("rb") as file:
            content = file.read(SERVER_JSON_MAX_BYTES + 1)
    try:
        program = read_server_json(content)
    except BadManifest as error:
        raise BuildUnusable(str(error)) from None
    return UnpackedBuild(
        root,
        program.command,
        program.env,
        root.joinpath(*path_words(program.workdir)),
        scratch_mb=program.scratch_mb,
    )


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
