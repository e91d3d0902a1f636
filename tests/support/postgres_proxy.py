"""A proxy before a PostgreSQL server that can break connections, block traffic and delay commits."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

_CHUNK = 1 << 16
_SOCKET = ".s.PGSQL.5432"
_BEGIN, _OF_CHANGE, _COMMIT = b"BEGIN ISOLATION", b"READ WRITE", b"COMMIT\0"


class PostgresProxy:
    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        [folder] = parse_qs(parts.query)["host"]
        self._server_path = Path(folder) / _SOCKET
        self._folder = Path(tempfile.mkdtemp(prefix="hosting-proxy-"))
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path}?host={self._folder}"
        self.cut_at: bytes | None = None
        """If a client message contains these bytes, the server receives the message and the client
        gets no response.
        """
        self.cuts_max: int | None = None
        """Number of messages that are cut."""
        self.cuts = 0
        self.waiting = 0
        self._may_commit = asyncio.Event()
        self._may_commit.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._unheard: set[asyncio.StreamWriter] = set()
        self._lost: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    async def open(self) -> None:
        self._listener = await asyncio.start_unix_server(self._lead, str(self._folder / _SOCKET))

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        shutil.rmtree(self._folder)

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def shut(self) -> None:
        """Breaks all connections and refuses new ones until `open`."""
        assert self._listener is not None
        self._listener.close()
        self.cut()

    def lose(self) -> None:
        """Breaks each open connection when its client sends the next message."""
        self._lost |= self._open

    def silence(self) -> None:
        """Drops all further traffic of open connections without closing them."""
        self._unheard |= self._open

    @contextlib.contextmanager
    def block_commits(self) -> Iterator[PostgresProxy]:
        """Delays commits of changes within the block. Read-only transactions continue."""
        self._may_commit.clear()
        try:
            yield self
        finally:
            self._may_commit.set()

    def _is_cut(self, output: bytes) -> bool:
        is_allowed = self.cuts_max is None or self.cuts < self.cuts_max
        return is_allowed and self.cut_at is not None and self.cut_at in output

    async def _hold(self) -> None:
        self.waiting += 1
        try:
            await self._may_commit.wait()
        finally:
            self.waiting -= 1

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        from_server, to_server = await asyncio.open_unix_connection(str(self._server_path))
        answers = asyncio.create_task(self._pass(from_server, writer))
        is_change = False
        try:
            while output := await reader.read(_CHUNK):
                if writer in self._lost:
                    return
                if _BEGIN in output:
                    is_change = _OF_CHANGE in output
                if is_change and _COMMIT in output:
                    await self._hold()
                if writer in self._unheard:
                    continue
                if self._is_cut(output):
                    answers.cancel()
                    await asyncio.wait({answers})
                    to_server.write(output)
                    # A response proves that the server has executed the message.
                    await from_server.read(_CHUNK)
                    self.cuts += 1
                    return
                to_server.write(output)
        except OSError:
            pass
        finally:
            self._open.discard(writer)
            answers.cancel()
            writer.transport.abort()
            to_server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while output := await reader.read(_CHUNK):
                writer.write(output)
        writer.close()


@contextlib.asynccontextmanager
async def open_postgres_proxy(server_url: str) -> AsyncIterator[PostgresProxy]:
    proxy = PostgresProxy(server_url)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
