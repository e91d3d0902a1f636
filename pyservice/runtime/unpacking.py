"""Unpacks the archive of a build: `python -m pyservice.runtime.unpacking <folder> <compression> <reserve bytes>`, the
archive on standard input. A process of its own, because it may take minutes and what it reads may be hostile.

Every byte goes through the rules of `archives` before anything of it is written, nothing is written through a link, and
files lose whatever bits they had but "may be run". Ends with 0 and the SHA-256 of what it read, with 1 and a sentence,
or with 28 (ENOSPC) when the disk came down to its reserve.
"""

from __future__ import annotations

import collections
import errno
import hashlib
import os
import sys
import tarfile
from pathlib import Path
from typing import IO, Final

from pyservice.runtime.archive_rules import BadArchive
from pyservice.runtime.archives import Archive
from pyservice.runtime.decompression import BadCompression, unpacker

NO_SPACE_STATUS: Final = errno.ENOSPC
NICE: Final = 10
_PIECE_BYTES: Final = 1 << 20
_LOOK_EVERY_BYTES: Final = 16 << 20


class _Checked:
    """A tar, as it is behind its compression, for who reads it from front to back."""

    def __init__(self, source: IO[bytes], compression: str) -> None:
        self.digest = hashlib.sha256()
        self._source = source
        self._unpack = unpacker(compression) if compression != "none" else None
        self._archive = Archive("none")
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


class _Folder:
    """Where it is unpacked into."""

    def __init__(self, root: Path, reserve_bytes: int) -> None:
        self._root = str(root)
        self._reserve_bytes = reserve_bytes
        self._folders = {self._root}
        self._unlooked = 0

    def add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        """One entry. Raises BadArchive, OSError."""
        place = self._place(entry.name)
        if entry.isdir():
            self._make(place)
            return
        self._make(os.path.dirname(place))
        # The last of several of one name is the one that counts.
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
        try:
            os.link(self._place(entry.linkname), place, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise BadArchive(
                entry.name, "not-found", "is another name of what is not there yet"
            ) from None

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
                self._look(len(piece))

    def _look(self, more: int) -> None:
        self._unlooked += more
        if self._unlooked >= _LOOK_EVERY_BYTES:
            self._unlooked = 0
            self.refuse_without_room()

    def refuse_without_room(self) -> None:
        """Raises OSError."""
        found = os.statvfs(self._root)
        if found.f_bavail * found.f_frsize < self._reserve_bytes:
            raise OSError(errno.ENOSPC, "the disk came down to its reserve", self._root)


def unpack(source: IO[bytes], root: Path, compression: str, reserve_bytes: int = 0) -> str:
    """Into an empty folder; the SHA-256 of the source in hex. Raises BadArchive, OSError."""
    checked = _Checked(source, compression)
    folder = _Folder(root, reserve_bytes)
    folder.refuse_without_room()
    try:
        with tarfile.open(fileobj=checked, mode="r|", bufsize=_PIECE_BYTES) as archive:  # type: ignore[call-overload]
            for entry in archive:
                folder.add(archive, entry)
                archive.members = []  # or it keeps them all
        checked.finish()
    except (BadCompression, tarfile.TarError, UnicodeError) as error:
        raise BadArchive("", "invalid", str(error)) from None
    return checked.digest.hexdigest()


def main() -> int:
    """The process."""
    root, compression, reserve_bytes = sys.argv[1:]
    os.nice(NICE)
    try:
        print(unpack(sys.stdin.buffer, Path(root), compression, int(reserve_bytes)))
    except BadArchive as error:
        print(f"{error.entry!r} {error.reason}" if error.entry else error.reason, file=sys.stderr)
        return 1
    except OSError as error:
        # Without the place: paths of this machine are nobody's business.
        print(error.strerror, file=sys.stderr)
        return NO_SPACE_STATUS if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
