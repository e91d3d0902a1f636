"""Unpacks a build: `python -m pyservice.runtime.build_unpacking <parent pid> <folder> <kind> <compression> <length>
<reserve bytes> [<image tag>]`, the build on standard input. A process of its own, because it may take minutes and what
it reads may be hostile. It ends with who asks: the next one begins anew in a folder of the same name.

In the folder comes to be `root`, and of an image or a bundle `program.json`: what is run in it. Every byte goes through
the rules of `archive_rules` before anything of it is written, nothing is written through a link that leads out, and
files lose whatever bits they had that give rights. Ends with 0 and the SHA-256 of what it read, with 1 and a sentence,
with 28 (ENOSPC) when the disk came down to its reserve, or with 75 (EX_TEMPFAIL) for a fault of this machine that no
archive brings about. What the system says is told without a path: a developer reads it, and where builds are is ours to
know.
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
"""Pieces and entries: a small disk has few inodes to spare."""


class _Checked:
    """A tar, as it is behind its compression, for who reads it from front to back."""

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
        """As files do, for sizes above 0."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = piece
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def finish(self) -> None:
        """Reads what nobody asked for. Raises BadArchive."""
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
    """What is unpacked."""

    content: IO[bytes]
    compression: str
    length: int

    def checked(self, rules: Rules | None = None, small: SmallFiles | None = None) -> _Checked:
        """All of it, which is read once."""
        allowance = SizeAllowance(self.length)
        return _Checked(self.content, self.compression, allowance, rules=rules, small=small)


class DiskReserve:
    """What is left on a disk, of which some stays for others: of its space and of its inodes."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._is_short = functools.partial(is_disk_short, folder, reserve_bytes)
        self._unlooked_bytes = self._unlooked = 0

    def written(self, more_bytes: int) -> None:
        """A piece of a file, or an entry, which is a block. Raises OSError."""
        self._unlooked_bytes += more_bytes
        self._unlooked += 1
        if self._unlooked_bytes >= _CHECK_EVERY_BYTES or self._unlooked >= _CHECK_EVERY:
            self._unlooked_bytes = self._unlooked = 0
            self.refuse_without()

    def refuse_without(self) -> None:
        """Raises OSError."""
        if self._is_short():
            raise OSError(errno.ENOSPC, "the disk came down to its reserve of space or inodes")


class _Folder:
    """Where it is unpacked into."""

    def __init__(self, root: Path, room: DiskReserve) -> None:
        self._root = str(root)
        self._room = room
        self._folders = {self._root}

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        """One entry. Raises BadArchive, OSError."""
        place = self._place(entry.name)
        if entry.isdir():
            self._make(place)
            return
        self._make(os.path.dirname(place))
        # The last of several of one name is the one that counts.
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
        # A folder that was not made here is not there, or is a link, and nothing behind links is.
        if os.path.dirname(linked) not in self._folders or not os.path.lexists(linked):
            raise BadArchive(entry.name, "not-found", "is another name of what is not there yet")
        os.link(linked, place, follow_symlinks=False)

    def _place(self, name: str) -> str:
        words = [word for word in name.split("/") if word not in ("", ".")]
        if name.startswith("/") or ".." in words:
            raise BadArchive(name, "not-allowed", "leads out of the archive")
        return "/".join([self._root, *words])

    def _make(self, place: str) -> None:
        """The folder with all above it, none of which is a link."""
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
    """One after the other, to its end. What was judged before is judged once more as it is read here: in what one
    program reads as one thing another one may find a second. Raises BadArchive.
    """
    source: Any = checked
    with tarfile.open(fileobj=source, mode="r|", bufsize=_PIECE_BYTES) as archive:
        for entry in archive:
            rules.entry(entry.type[0], os.fsencode(entry.name), os.fsencode(entry.linkname))
            yield archive, entry
            archive.members = []  # type: ignore[attr-defined]  # or it keeps them all
    checked.finish()
    collections.deque(rules.finish(), maxlen=0)


def _unpack_bundle(upload: _Upload, root: RootFilesystem) -> tuple[str, BuildProgram]:
    """`rootfs` of a bundle, and what its configuration says is run in it."""
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
    """The path in the bundle's root; None: it is not in there."""
    first, _, rest = normal_path(name).partition("/")
    return rest if first == _ROOTFS else None


def _unpack_image(
    upload: _Upload, folder: Path, tag: str | None, root: RootFilesystem, room: DiskReserve
) -> tuple[str, BuildProgram]:
    """The archive beside, then one layer over the other."""
    parts = folder / "parts"
    parts.mkdir()
    small = SmallFiles(None, MANIFEST_MAX_BYTES)
    digest = _unpack_archive(upload.checked(small=small), parts, room)
    found = read_image(lambda path: bytes(small.files[path]), small.names, tag)
    # One for all layers: each may be packed itself, however the archive is.
    allowance = SizeAllowance(upload.length)
    for layer in found.layers:
        root.next_layer()
        # Links stay inside: these are the rules of the archive.
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
    """Into `root` of the folder, which is there and empty; the SHA-256 of the source in hex. `length`: of the source,
    which says how much may be in it. Raises BadArchive, BadManifest, OSError.
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
    """The process."""
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
