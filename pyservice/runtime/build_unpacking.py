"""Worker process that checks or unpacks one build from standard input.

Usage: `python -m pyservice.runtime.build_unpacking <parent pid> check|<folder> <kind> <compression>
<length> <reserve bytes> <container root uid> [<image tag>]`. The worker is a separate process in
the sandbox of `build_sandbox`, because builds are hostile input and take minutes. It ends with its
parent. The container root uid is empty if the service is not root. If the service is root, files of
archives belong to root, and files of containers to the users inside.

With `check`, the worker writes nothing. With a folder, it writes `root` and, for images and
bundles, `program.json`. Exit code 0 comes with a report as JSON. Code 28 (ENOSPC) means that the
disk reserve is reached, and 75 (EX_TEMPFAIL) means a fault of this machine. Messages contain no
paths, because developers read them.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple, Protocol

from pyservice.durable_files import is_disk_full, write_file
from pyservice.process.parent_death import signal_on_parent_death
from pyservice.runtime.archive_reader import ArchiveEntry, read_archive
from pyservice.runtime.archive_rules import (
    DISK_BLOCK_BYTES,
    FILES,
    FOLDER,
    HARD_LINK,
    SYMBOLIC_LINK,
    BadArchive,
    FolderRules,
    RootRules,
    SizeAllowance,
)
from pyservice.runtime.build_manifests import (
    CONFIG_JSON,
    SERVER_JSON,
    SERVER_JSON_MAX_BYTES,
    BadManifest,
    BuildContents,
    BuildProgram,
    read_bundle_config,
    read_image,
    read_server_json,
)
from pyservice.runtime.build_manifests import MAX_BYTES as MANIFEST_MAX_BYTES
from pyservice.runtime.decompression import decompress_layer
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.runtime.root_filesystem import (
    PROGRAM_JSON,
    RootFilesystem,
    path_words,
    resolve_program,
)
from pyservice.runtime.start_problems import (
    BEGINNING_BYTES,
    ProgramFile,
    program_problem,
    read_program,
)

ARCHIVE: Final = "archive"
IMAGE: Final = "docker_image"
BUNDLE: Final = "oci_bundle"
CHECK: Final = "check"
NO_SPACE_STATUS: Final = errno.ENOSPC
FAULT_STATUS: Final = os.EX_TEMPFAIL
NICE: Final = 10
NAMES_MAX: Final = 10_000
_HOST_ROOT: Final = 0
_SMALL_FILES_MAX: Final = 64
_FAULTS: Final = (
    *(errno.EIO, errno.EROFS, errno.ESTALE),
    *(errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EAGAIN),
)
_ROOTFS: Final = "rootfs"
_INPUT_BYTES: Final = 64 << 10
_CHECK_EVERY_BYTES: Final = 16 << 20
_CHECK_EVERY: Final = 64
"""Number of writes and entries between two checks. A small disk has few spare inodes."""


class _Target(Protocol):
    def add(self, entry: ArchiveEntry) -> None: ...


class _Build:
    """Uploaded build. Its stream can be read only once."""

    def __init__(self, source: IO[bytes], kind: str, compression: str, length: int) -> None:
        self._source = source
        self._kind = kind
        self._compression = compression
        self._length = length
        self._digest = hashlib.sha256()
        self.folder_rules = FolderRules()

    def read(self, target: _Target, image_tag: str | None) -> BuildContents:
        """Passes each entry of the build to `target`. Returns its program and image layers.

        Raises BadArchive, BadManifest.
        """
        manifests = _Manifests(self._kind)
        rules = RootRules() if self._kind == BUNDLE else self.folder_rules
        allowance = SizeAllowance(self._length)
        for entry in read_archive(self._blocks(), self._compression, allowance, rules):
            copy = manifests.copy_manifest(entry)
            target.add(copy)
            _skip(copy.content)
        return manifests.parse(image_tag)

    def digest(self) -> str:
        """Reads the rest of the build, and returns its SHA-256."""
        _skip(self._blocks())
        return self._digest.hexdigest()

    def _blocks(self) -> Iterator[bytes]:
        while block := self._source.read(_INPUT_BYTES):
            self._digest.update(block)
            yield block


def _skip(content: Iterable[object]) -> None:
    collections.deque(content, maxlen=0)


class _Manifests:
    """Copies of the manifest files of a build, made while the build is read.

    In an image, any file that begins like JSON can be a manifest.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._name = {ARCHIVE: SERVER_JSON, BUNDLE: CONFIG_JSON}.get(kind)
        self._max_bytes = SERVER_JSON_MAX_BYTES if kind == ARCHIVE else MANIFEST_MAX_BYTES
        self._files: dict[str, bytearray] = {}
        self._names: set[str] = set()

    def copy_manifest(self, entry: ArchiveEntry) -> ArchiveEntry:
        """Returns the entry. If it can be a manifest, reading its content also stores a copy."""
        if entry.kind == FOLDER:
            return entry
        path = normal_path(entry.name)
        self._files.pop(path, None)
        if self._name is None:
            self._names.add(path)
            if len(self._names) > NAMES_MAX:
                raise BadArchive("", "too-many", f"must have at most {NAMES_MAX} files")
        elif path != self._name:
            return entry
        if entry.kind not in FILES:
            return entry
        if self._name is not None:
            self._files[path] = bytearray()
        return dataclasses.replace(entry, content=self._copy(path, entry.content))

    def _copy(self, path: str, content: Iterator[bytes]) -> Iterator[bytes]:
        for number, piece in enumerate(content):
            if self._name is None and number == 0 and piece.startswith((b"{", b"[")):
                if len(self._files) >= _SMALL_FILES_MAX:
                    reason = f"has more than {_SMALL_FILES_MAX} files that begin like JSON"
                    raise BadArchive("", "too-many", reason)
                self._files[path] = bytearray()
            copy = self._files.get(path)
            if copy is not None:
                # One more byte shows that the file is too long.
                copy += piece[: self._max_bytes + 1 - len(copy)]
            yield piece

    def parse(self, image_tag: str | None) -> BuildContents:
        if self._name is None:
            return read_image(lambda path: bytes(self._files[path]), self._names, image_tag)
        content = bytes(self._files[self._name]) if self._name in self._files else None
        read = read_server_json if self._kind == ARCHIVE else read_bundle_config
        return BuildContents(read(content))


def normal_path(name: str) -> str:
    return "/".join(path_words(name))


class DiskSpaceCheck:
    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._is_short = functools.partial(is_disk_short, folder, reserve_bytes)
        self._unchecked_bytes = self._unchecked_writes = 0

    def record_write(self, more_bytes: int) -> None:
        self._unchecked_bytes += more_bytes
        self._unchecked_writes += 1
        if self._unchecked_bytes >= _CHECK_EVERY_BYTES or self._unchecked_writes >= _CHECK_EVERY:
            self._unchecked_bytes = self._unchecked_writes = 0
            self.refuse_without()

    def refuse_without(self) -> None:
        if self._is_short():
            raise OSError(errno.ENOSPC, "the disk reached its reserve of space or inodes")


class _Folder:
    def __init__(self, root: Path, space_check: DiskSpaceCheck, owner: int | None = None) -> None:
        self._root = str(root)
        self._space_check = space_check
        self._owner = owner
        self._folders = {self._root}

    def add(self, entry: ArchiveEntry) -> None:
        path = self._path(entry.name)
        if entry.kind == FOLDER:
            self._create_folder(path)
            return
        self._create_folder(os.path.dirname(path))
        self._space_check.record_write(DISK_BLOCK_BYTES)
        if os.path.lexists(path):
            if os.path.isdir(path):
                raise BadArchive(entry.name, "not-unique", "is both a folder and a file")
            os.unlink(path)
        if entry.kind == SYMBOLIC_LINK:
            os.symlink(entry.link, path)
            self._own(path)
        elif entry.kind == HARD_LINK:
            self._link(entry, path)
        else:
            self._write(entry, path)
            self._own(path)

    def _link(self, entry: ArchiveEntry, path: str) -> None:
        linked = self._path(entry.link)
        # Any other folder is missing or is a link. Nothing is written through links.
        if os.path.dirname(linked) not in self._folders or not os.path.lexists(linked):
            reason = "is a hard link to a missing file: put the file before the link"
            raise BadArchive(entry.name, "not-found", reason)
        if linked in self._folders:
            raise BadArchive(entry.name, "not-allowed", "is a hard link to a folder")
        os.link(linked, path, follow_symlinks=False)

    def _path(self, name: str) -> str:
        words = path_words(name)
        if name.startswith("/") or ".." in words:
            raise BadArchive(name, "not-allowed", "points outside the archive")
        return "/".join([self._root, *words])

    def _create_folder(self, path: str) -> None:
        if path in self._folders:
            return
        self._create_folder(os.path.dirname(path))
        self._space_check.record_write(DISK_BLOCK_BYTES)
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            name = path.removeprefix(f"{self._root}/")
            reason = "is a file or link, but other entries need a folder of this path"
            raise BadArchive(name, "not-unique", reason) from None
        self._own(path)
        self._folders.add(path)

    def _own(self, path: str) -> None:
        if self._owner is not None:
            os.chown(path, self._owner, self._owner, follow_symlinks=False)

    def _write(self, entry: ArchiveEntry, path: str) -> None:
        mode = 0o755 if entry.mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, mode), "wb", buffering=0) as file:
            os.fchmod(file.fileno(), mode)
            for piece in entry.content:
                file.write(piece)
                self._space_check.record_write(len(piece))


class _BundleRoot:
    def __init__(self, root: RootFilesystem) -> None:
        self._root = root

    def add(self, entry: ArchiveEntry) -> None:
        name = _inside_rootfs(entry.name)
        if name is None:
            return
        link = _inside_rootfs(entry.link) if entry.kind == HARD_LINK else entry.link
        if link is None:
            raise BadArchive(name, "not-allowed", f"is a hard link to a file outside {_ROOTFS}")
        self._root.add(dataclasses.replace(entry, name=name, link=link), whiteouts=False)


def _inside_rootfs(name: str) -> str | None:
    first, _, path = normal_path(name).partition("/")
    return path if first == _ROOTFS else None


class _NullTarget:
    def add(self, entry: ArchiveEntry) -> None:
        pass


class _ArchivePrograms:
    """Files of an archive that its command can name. `server.json` can be its last entry.

    Paths are stored as hashes, because paths can be long.
    """

    def __init__(self) -> None:
        self._files: dict[int, ProgramFile] = {}

    def add(self, entry: ArchiveEntry) -> None:
        path = hash(normal_path(entry.name))
        self._files.pop(path, None)
        if entry.kind in FILES:
            beginning = b""
            for piece in entry.content:
                beginning += piece[: BEGINNING_BYTES - len(beginning)]
            # The unpacker gives the right to execute to all users if the owner has it.
            self._files[path] = read_program(bool(entry.mode & 0o100), beginning)
        elif entry.kind == HARD_LINK and (linked := self.find(normal_path(entry.link))):
            self._files[path] = linked

    def find(self, path: str) -> ProgramFile | None:
        return self._files.get(hash(path))


def _outside_program(
    start: BuildProgram, programs: _ArchivePrograms, build: _Build
) -> list[str] | None:
    """Checks the program that an archive starts.

    Returns the path, form and interpreter of a program with an interpreter outside the archive.
    Raises BadArchive.
    """
    name = start.command[0]
    if name.startswith("/") or "/" not in name or "$(" in name or ".." in name.split("/"):
        return None  # the machine or the variables of the run decide

    def inside(path: str) -> str:
        return os.fsdecode(build.folder_rules.resolve(os.fsencode(path)))

    path, outside = normal_path(f"{start.workdir}/{name}"), []

    def has_file(interpreter: str) -> bool:
        if interpreter.startswith("/"):
            outside.append(interpreter)
            return True
        return programs.find(inside(f"{start.workdir}/{interpreter}")) is not None

    program = programs.find(inside(path))
    problem = program_problem(path, program, has_file)
    if problem is not None:
        word = "not-found" if problem.kind.endswith("not-found") else "invalid"
        raise BadArchive("", word, problem.sentence)
    return [path, program.form, *outside] if program is not None and outside else None


class _LayerCheck:
    """Validates every file of an image like a layer, because the manifest that names the layers
    can come last.
    Also counts the unpacked size of all files.
    """

    def __init__(self, length: int) -> None:
        self._allowance = SizeAllowance(length)
        self._problems: dict[str, BadArchive] = {}

    def add(self, entry: ArchiveEntry) -> None:
        self._problems.pop(normal_path(entry.name), None)
        if entry.kind not in FILES:
            return
        pieces = decompress_layer(entry.content)
        layer = read_archive(pieces, "none", self._allowance, RootRules())
        for pass_ in (layer, self._count_bytes(pieces), self._count_bytes(entry.content)):
            try:
                _skip(pass_)
            except BadArchive as error:
                if not _is_no_tar(error):
                    raise
                self._problems.setdefault(normal_path(entry.name), error)

    def _count_bytes(self, pieces: Iterator[bytes]) -> Iterator[None]:
        for piece in pieces:
            self._allowance.take(len(piece))
            yield

    def refuse_bad(self, layers: Sequence[str]) -> None:
        for layer in layers:
            if layer in self._problems:
                raise _of_layer(layer, self._problems[layer])


def _is_no_tar(error: BadArchive) -> bool:
    return not error.entry and error.word == "invalid"


def _of_layer(layer: str, error: BadArchive) -> BadArchive:
    return BadArchive(layer, error.word, error.reason) if _is_no_tar(error) else error


def _unpack_layers(parts: Path, layers: Sequence[str], length: int, root: RootFilesystem) -> None:
    # All layers share the allowance, because each layer can be compressed.
    allowance = SizeAllowance(length)
    for layer in layers:
        root.next_layer()
        with (parts / layer).open("rb") as file:
            blocks = iter(functools.partial(file.read, _INPUT_BYTES), b"")
            pieces = decompress_layer(blocks)
            try:
                for entry in read_archive(pieces, "none", allowance, RootRules()):
                    root.add(entry)
            except BadArchive as error:
                raise _of_layer(layer, error) from None


class Checked(NamedTuple):
    sha256: str
    problem: BadArchive | None
    program: list[str] | None = None
    """Path, form and interpreter of the program, if its interpreter is outside the build."""
    scratch_mb: int = 0
    """Size of the scratch folder that an archive requests. 0: none."""


def check(
    source: IO[bytes], kind: str, compression: str, length: int, image_tag: str | None = None
) -> Checked:
    """Checks a build, and returns its first problem. Writes nothing."""
    build, program, scratch_mb = _Build(source, kind, compression, length), None, 0
    try:
        if kind == IMAGE:
            layers = _LayerCheck(length)
            layers.refuse_bad(build.read(layers, image_tag).layers)
        elif kind == ARCHIVE:
            programs = _ArchivePrograms()
            start = build.read(programs, None).program
            program, scratch_mb = _outside_program(start, programs, build), start.scratch_mb
        else:
            build.read(_NullTarget(), image_tag)
    except (BadArchive, BadManifest) as error:
        return Checked(build.digest(), _problem(error))
    return Checked(build.digest(), None, program, scratch_mb)


def unpack(
    source: IO[bytes],
    folder: Path,
    kind: str,
    compression: str,
    length: int,
    reserve_bytes: int = 0,
    image_tag: str | None = None,
    *,
    root_uid: int | None = None,
) -> str:
    """Unpacks a build below `folder`. Returns the SHA-256 of the packed build.

    `root_uid` is the host's user ID for root in containers, or None to keep this process as owner.

    Raises BadArchive, BadManifest, OSError.
    """
    space_check = DiskSpaceCheck(folder, reserve_bytes)
    space_check.refuse_without()
    build = _Build(source, kind, compression, length)
    if kind == ARCHIVE:
        owner = None if root_uid is None else _HOST_ROOT
        build.read(_Folder(folder / "root", space_check, owner), image_tag)
        return build.digest()
    root = RootFilesystem(folder / "root", root_uid, space_check.record_write)
    if kind == BUNDLE:
        program = build.read(_BundleRoot(root), image_tag).program
    else:
        parts = folder / "parts"
        parts.mkdir()
        program, layers = build.read(_Folder(parts, space_check), image_tag)
        _unpack_layers(parts, layers, length, root)
        shutil.rmtree(parts)
    content = json.dumps(dataclasses.asdict(resolve_program(program, root))).encode()
    write_file(folder / PROGRAM_JSON, content)
    if root_uid is not None:
        os.chown(folder / PROGRAM_JSON, _HOST_ROOT, _HOST_ROOT)
    return build.digest()


def main() -> int:
    parent, folder, kind, compression, length, reserve_bytes, root_uid, *tag = sys.argv[1:]
    signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    os.nice(NICE)
    digest, problem, program, scratch_mb = None, None, None, 0
    source, build = sys.stdin.buffer, (kind, compression, int(length))
    try:
        if folder == CHECK:
            digest, problem, program, scratch_mb = check(source, *build, *tag)
        else:
            owner = int(root_uid) if root_uid else None
            reserve = int(reserve_bytes)
            digest = unpack(source, Path(folder), *build, reserve, *tag, root_uid=owner)
    except (BadManifest, BadArchive) as error:
        problem = _problem(error)
    except MemoryError:
        problem = BadArchive("", "too-high", "needs too much memory to be read")
    except OSError as error:
        if is_disk_full(error) or error.errno in _FAULTS:
            print(error.strerror, file=sys.stderr)
            return NO_SPACE_STATUS if is_disk_full(error) else FAULT_STATUS
        problem = BadArchive("", "invalid", error.strerror or "cannot be unpacked on this machine")
    problem_fields = problem and (problem.entry, problem.word, problem.reason)
    report = {"sha256": digest, "problem": problem_fields}
    print(json.dumps({**report, "program": program, "scratch_mb": scratch_mb}))
    return 0


def _problem(error: BadArchive | BadManifest) -> BadArchive:
    return error if isinstance(error, BadArchive) else BadArchive("", "invalid", str(error))


if __name__ == "__main__":
    sys.exit(main())
