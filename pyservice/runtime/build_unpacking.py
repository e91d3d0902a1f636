"""Worker process that unpacks one build from standard input.

Usage: `python -m pyservice.runtime.build_unpacking <parent pid> <folder> <kind> <compression>
<length> <reserve bytes> [<image tag>]`. It is a separate process, because builds are hostile input
and take minutes. It ends with its parent.

Writes `root` and, for images and bundles, `program.json`. Every byte is validated before it is
written. Exit codes: 0 with the SHA-256 of the input, 1 with a sentence, 28 (ENOSPC) at the disk
reserve, 75 (EX_TEMPFAIL) for a fault of this machine. Sentences contain no paths, because
developers read them.
"""

from __future__ import annotations

import collections
import errno
import functools
import hashlib
import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from pyservice.durable_files import is_disk_full, write_file
from pyservice.process.parent_death import signal_on_parent_death
from pyservice.runtime.archive_rules import (
    DISK_BLOCK_BYTES,
    BadArchive,
    FolderRules,
    RootRules,
    Rules,
    SizeAllowance,
)
from pyservice.runtime.archive_validation import ArchiveValidator, SmallFiles, normal_path
from pyservice.runtime.build_manifests import (
    CONFIG_JSON,
    BadManifest,
    BuildProgram,
    read_bundle_config,
    read_image,
)
from pyservice.runtime.build_manifests import MAX_BYTES as MANIFEST_MAX_BYTES
from pyservice.runtime.decompression import (
    MAGIC_BYTES,
    BadCompression,
    decompressor,
    detect_compression,
)
from pyservice.runtime.filesystem import is_disk_short
from pyservice.runtime.root_filesystem import (
    PROGRAM_JSON,
    RootFilesystem,
    container_root_uid,
    resolve_program,
)

NO_SPACE_STATUS: Final = errno.ENOSPC
FAULT_STATUS: Final = os.EX_TEMPFAIL
NICE: Final = 10
_FAULTS: Final = (
    *(errno.EIO, errno.EROFS, errno.ESTALE),
    *(errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EAGAIN),
)
_ROOTFS: Final = "rootfs"
_PIECE_BYTES: Final = 1 << 20
_CHECK_EVERY_BYTES: Final = 16 << 20
_CHECK_EVERY: Final = 64
"""Number of writes and entries between two checks. A small disk has few spare inodes."""


class _Checked:
    def __init__(
        self,
        source: IO[bytes],
        compression: str,
        allowance: SizeAllowance,
        *,
        rules: Rules | None = None,
        small: SmallFiles | None = None,
    ) -> None:
        self.digest = hashlib.sha256()
        self._source = source
        self._unpack = decompressor(compression) if compression != "none" else None
        self._archive = ArchiveValidator("none", allowance, rules=rules, small=small)
        self._pieces = self._read()
        self._left = b""

    def read(self, size: int) -> bytes:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = piece
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def finish(self) -> None:
        collections.deque(self._pieces, maxlen=0)

    def _read(self) -> collections.abc.Iterator[bytes]:
        while content := self._source.read(_PIECE_BYTES):
            self.digest.update(content)
            for piece in (content,) if self._unpack is None else self._unpack.pieces(content):
                collections.deque(self._archive.feed(piece), maxlen=0)
                yield piece
        if self._unpack is not None:
            self._unpack.finish()
        collections.deque(self._archive.finish(), maxlen=0)


class _Upload(NamedTuple):
    content: IO[bytes]
    compression: str
    length: int

    def checked(self, rules: Rules | None = None, small: SmallFiles | None = None) -> _Checked:
        allowance = SizeAllowance(self.length)
        return _Checked(self.content, self.compression, allowance, rules=rules, small=small)


class DiskReserve:
    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._is_short = functools.partial(is_disk_short, folder, reserve_bytes)
        self._unlooked_bytes = self._unlooked = 0

    def written(self, more_bytes: int) -> None:
        self._unlooked_bytes += more_bytes
        self._unlooked += 1
        if self._unlooked_bytes >= _CHECK_EVERY_BYTES or self._unlooked >= _CHECK_EVERY:
            self._unlooked_bytes = self._unlooked = 0
            self.refuse_without()

    def refuse_without(self) -> None:
        if self._is_short():
            raise OSError(errno.ENOSPC, "the disk came down to its reserve of space or inodes")


class _Folder:
    def __init__(self, root: Path, room: DiskReserve) -> None:
        self._root = str(root)
        self._room = room
        self._folders = {self._root}

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        place = self._place(entry.name)
        if entry.isdir():
            self._make(place)
            return
        self._make(os.path.dirname(place))
        self._room.written(DISK_BLOCK_BYTES)
        if os.path.lexists(place):
            if os.path.isdir(place):
                raise BadArchive(entry.name, "not-unique", "is a folder and a file")
            os.unlink(place)
        if entry.issym():
            os.symlink(entry.linkname, place)
        elif entry.islnk():
            self._link(entry, place)
        elif entry.isreg():
            self._write(archive, entry, place)
        else:
            raise BadArchive(entry.name, "not-allowed", "is neither file, folder nor link")

    def _link(self, entry: tarfile.TarInfo, place: str) -> None:
        linked = self._place(entry.linkname)
        # Any other folder is missing or is a link. Nothing is written through links.
        if os.path.dirname(linked) not in self._folders or not os.path.lexists(linked):
            raise BadArchive(entry.name, "not-found", "is another name of what is not there yet")
        os.link(linked, place, follow_symlinks=False)

    def _place(self, name: str) -> str:
        words = [word for word in name.split("/") if word not in ("", ".")]
        if name.startswith("/") or ".." in words:
            raise BadArchive(name, "not-allowed", "leads out of the archive")
        return "/".join([self._root, *words])

    def _make(self, place: str) -> None:
        if place in self._folders:
            return
        self._make(os.path.dirname(place))
        self._room.written(DISK_BLOCK_BYTES)
        try:
            os.mkdir(place, 0o755)
        except FileExistsError:
            name = place.removeprefix(f"{self._root}/")
            raise BadArchive(name, "not-unique", "stands where a folder has to be") from None
        self._folders.add(place)

    def _write(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, place: str) -> None:
        content = archive.extractfile(entry)
        assert content is not None
        mode = 0o755 if entry.mode & 0o100 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(place, flags, mode), "wb", buffering=0) as file:
            os.fchmod(file.fileno(), mode)
            while piece := content.read(_PIECE_BYTES):
                file.write(piece)
                self._room.written(len(piece))


def _unpack_archive(checked: _Checked, root: Path, room: DiskReserve) -> str:
    folder = _Folder(root, room)
    for archive, entry in _entries(checked, FolderRules()):
        folder.add(archive, entry)
    return checked.digest.hexdigest()


def _entries(checked: _Checked, rules: Rules) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    source: Any = checked
    with tarfile.open(fileobj=source, mode="r|", bufsize=_PIECE_BYTES) as archive:
        for entry in archive:
            rules.entry(entry.type[0], os.fsencode(entry.name), os.fsencode(entry.linkname))
            yield archive, entry
            archive.members = []  # type: ignore[attr-defined]  # or it keeps them all
    checked.finish()
    collections.deque(rules.finish(), maxlen=0)


def _unpack_bundle(upload: _Upload, root: RootFilesystem) -> tuple[str, BuildProgram]:
    small = SmallFiles(CONFIG_JSON, MANIFEST_MAX_BYTES)
    checked = upload.checked(RootRules(), small)
    for archive, entry in _entries(checked, RootRules()):
        inside = _inside(entry.name)
        if inside is None:
            continue
        entry.name = inside
        if entry.islnk():
            linked = _inside(entry.linkname)
            if linked is None:
                raise BadArchive(
                    inside, "not-allowed", f"is another name of what is not in {_ROOTFS}"
                )
            entry.linkname = linked
        root.add(archive, entry, whiteouts=False)
    content = small.files.get(CONFIG_JSON)
    return checked.digest.hexdigest(), read_bundle_config(
        None if content is None else bytes(content)
    )


def _inside(name: str) -> str | None:
    first, _, rest = normal_path(name).partition("/")
    return rest if first == _ROOTFS else None


def _unpack_image(
    upload: _Upload, folder: Path, tag: str | None, root: RootFilesystem, room: DiskReserve
) -> tuple[str, BuildProgram]:
    parts = folder / "parts"
    parts.mkdir()
    small = SmallFiles(None, MANIFEST_MAX_BYTES)
    digest = _unpack_archive(upload.checked(small=small), parts, room)
    found = read_image(lambda path: bytes(small.files[path]), small.names, tag)
    # All layers share the allowance, because each layer can be compressed.
    allowance = SizeAllowance(upload.length)
    for layer in found.layers:
        root.next_layer()
        with (parts / layer).open("rb") as file:
            below = _Checked(file, _compression(file), allowance, rules=RootRules())
            for archive, entry in _entries(below, RootRules()):
                root.add(archive, entry)
    shutil.rmtree(parts)
    return digest, found.program


def _compression(file: IO[bytes]) -> str:
    begin = file.read(MAGIC_BYTES)
    file.seek(0)
    return detect_compression(begin)


def unpack(
    source: IO[bytes],
    folder: Path,
    kind: str,
    compression: str,
    length: int,
    reserve_bytes: int = 0,
    image_tag: str | None = None,
) -> str:
    """Unpacks a build into the empty folder `root`. Returns the SHA-256 of the source.

    Raises BadArchive, BadManifest, OSError.
    """
    room = DiskReserve(folder, reserve_bytes)
    room.refuse_without()
    try:
        return _unpack(_Upload(source, compression, length), folder, kind, room, image_tag)
    except (BadCompression, tarfile.TarError, UnicodeError) as error:
        raise BadArchive("", "invalid", str(error)) from None


def _unpack(
    upload: _Upload, folder: Path, kind: str, room: DiskReserve, image_tag: str | None
) -> str:
    if kind == "archive":
        return _unpack_archive(upload.checked(), folder / "root", room)
    root = RootFilesystem(folder / "root", container_root_uid(), room.written)
    if kind == "oci_bundle":
        digest, program = _unpack_bundle(upload, root)
    else:
        digest, program = _unpack_image(upload, folder, image_tag, root, room)
    write_file(folder / PROGRAM_JSON, json.dumps(resolve_program(program, root).told()).encode())
    return digest


def main() -> int:
    asking, folder, kind, compression, length, reserve_bytes, *tag = sys.argv[1:]
    signal_on_parent_death(signal.SIGKILL)
    if os.getppid() != int(asking):
        return 1
    os.nice(NICE)
    try:
        stdin = sys.stdin.buffer
        sizes = int(length), int(reserve_bytes)
        print(unpack(stdin, Path(folder), kind, compression, *sizes, *tag))
    except BadManifest as error:
        print(error, file=sys.stderr)
        return 1
    except BadArchive as error:
        print(f"{error.entry!r} {error.reason}" if error.entry else error.reason, file=sys.stderr)
        return 1
    except OSError as error:
        print(error.strerror or "it cannot be unpacked here", file=sys.stderr)
        return _status(error)
    return 0


def _status(error: OSError) -> int:
    if is_disk_full(error):
        return NO_SPACE_STATUS
    return FAULT_STATUS if error.errno in _FAULTS else 1


if __name__ == "__main__":
    sys.exit(main())
