from __future__ import annotations

import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pyservice.kubernetes.build_fetch import START_PROBLEM, BuildFetch
from pyservice.node.fetch_build import (
    BuildUnusable,
    NotFetched,
    fetch_build,
    find_problem,
    prepare,
    read_program,
    start_script,
)
from pyservice.runtime.build_manifests import BuildProgram
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from tests.support.certificates import Certificates
from tests.support.upload_files import entry, gzipped, tar
from tests.support.waiting import PATIENCE_S


class Node:
    """The HTTPS server of a node, with a list of its next answers."""

    def __init__(self, certificates: Certificates) -> None:
        self.archives: dict[str, bytes] = {}
        self.refusals: list[int] = []
        self.cut_after: list[int] = []
        """Lengths after which the next answers end."""
        self.paths: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates.cert, certificates.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, archive: bytes, compression: str = "none", **more: Any) -> BuildFetch:
        sha256 = hashlib.sha256(archive).hexdigest()
        self.archives[sha256] = archive
        return BuildFetch(sha256, compression, len(archive), self.port, **more)

    def _handler(node) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node.paths.append(self.path)
                archive = node.archives.get(self.path.removeprefix("/archives/"))
                if node.refusals:
                    self.send_error(node.refusals.pop(0))
                elif archive is None:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(archive)))
                    self.end_headers()
                    end = node.cut_after.pop(0) if node.cut_after else len(archive)
                    self.wfile.write(archive[:end])

            def log_message(self, *words: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    certificates.renew()
    return certificates


@pytest.fixture
def node(certificates: Certificates) -> Iterator[Node]:
    node = Node(certificates)
    yield node
    node.stop()


def build(command: list[str], files: dict[str, bytes] | None = None, **fields: Any) -> bytes:
    manifest = json.dumps({"command": command, **fields}).encode()
    return tar({"server.json": manifest, **(files or {})})


def test_build_is_unpacked_with_its_modes(node: Node, tmp_path: Path) -> None:
    program = entry("run.sh", b"0")
    program.mode = 0o755
    archive = gzipped(tar({"server.json": b'{"command": ["./run.sh"]}', "data/a": b"x"}, [program]))
    fetch_build("127.0.0.1", node.add(archive, "gzip"), tmp_path)
    assert (tmp_path / "root/data/a").read_bytes() == b"x"
    assert (tmp_path / "root/run.sh").stat().st_mode & 0o777 == 0o755
    assert len(node.paths) == 1


@pytest.mark.parametrize("fault", ["refused", "cut"])
def test_fetch_is_repeated_until_the_node_gives_the_archive(
    node: Node, tmp_path: Path, fault: str
) -> None:
    archive = build(["sh"], {"large": b"x" * (1 << 20)})
    if fault == "refused":
        node.refusals = [503, 429]
    else:
        node.cut_after = [0, len(archive) // 2]
    fetch_build("127.0.0.1", node.add(archive), tmp_path)
    assert (tmp_path / "root/large").stat().st_size == 1 << 20
    assert len(node.paths) == 3


def test_node_that_gives_nothing_is_named_in_the_end(node: Node, tmp_path: Path) -> None:
    fetch = node.add(build(["sh"]))
    node.refusals = [503] * 100
    with pytest.raises(NotFetched, match="503"):
        fetch_build("127.0.0.1", fetch, tmp_path, timeout_s=0.3)
    node.stop()
    with pytest.raises(NotFetched, match="the node did not answer"):
        fetch_build("127.0.0.1", fetch, tmp_path, timeout_s=0.3)


def test_missing_archive_is_final(node: Node, tmp_path: Path) -> None:
    fetch = node.add(build(["sh"]))
    node.archives.clear()
    with pytest.raises(BuildUnusable, match="missing in the service's storage"):
        fetch_build("127.0.0.1", fetch, tmp_path)
    assert len(node.paths) == 1


def test_content_with_another_digest_is_refused(node: Node, tmp_path: Path) -> None:
    fetch = node.add(build(["sh"]))
    node.archives[fetch.sha256] = build(["id"])
    with pytest.raises(BuildUnusable, match="SHA-256 differs: upload it as a new build"):
        fetch_build("127.0.0.1", replace(fetch, length=len(build(["id"]))), tmp_path)


@pytest.mark.parametrize(
    ("archive", "words"),
    [
        (b"no tar " * 100, "is not a tar"),
        (tar({"a": b""}), r"has no server\.json"),
        (tar({"server.json": b"{}"}), "command must be a list"),
        (tar(entries=[entry("../out", b"0")]), "points outside the archive|'../out'"),
        (tar(entries=[entry("link", b"2", "/etc/passwd")]), "'link'"),
    ],
)
def test_unusable_build_is_refused_with_a_sentence(
    node: Node, tmp_path: Path, archive: bytes, words: str
) -> None:
    with pytest.raises(BuildUnusable, match=words):
        prepare("127.0.0.1", node.add(archive), tmp_path)
    assert not (tmp_path.parent / "out").exists()


class Started:
    """A start script that ran, with what its program wrote."""

    def __init__(
        self,
        folder: Path,
        program: BuildProgram,
        *args: str,
        pod: dict[str, str] | None = None,
        check: bool = False,
    ) -> None:
        root = folder / "root"
        root.mkdir(exist_ok=True)
        last_words = folder / "last-words"
        variables = {} if pod is None else pod
        fetch = BuildFetch("", "none", 0, 0, args, tuple(variables))
        problem = find_problem(program, root) if check else None
        script = start_script(
            program,
            fetch,
            problem,
            root=str(root),
            keeper=str(KEEPER_BINARY),
            scratch="/s",
            last_words=str(last_words),
        )
        path = folder / "start"
        path.write_text(script)
        result = subprocess.run(
            ["/bin/sh", str(path)],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.status, self.output, self.errors = result.returncode, result.stdout, result.stderr
        self.last_words = last_words.read_text() if last_words.exists() else ""


DUMP = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def dump(folder: Path, program: BuildProgram, *args: str, **pod: str) -> Any:
    started = Started(folder, program, *args, pod=pod)
    assert started.status == 0, started.errors
    return json.loads(started.output)


HOSTILE = ["", " ", "a b", "'", '"', "$HOME", "$(id)", "`id`", "\\", "\n", "*", "~", "é", "-n", "$"]


def test_arguments_and_variables_arrive_unchanged(tmp_path: Path) -> None:
    variables = {f"V{number}": text for number, text in enumerate(HOSTILE)}
    program = BuildProgram([sys.executable, "-c", DUMP, *HOSTILE], env=variables)
    arguments, environment, _ = dump(tmp_path, program, *HOSTILE)
    assert arguments == [*HOSTILE, *HOSTILE]
    assert variables.items() <= environment.items()


def test_references_become_variables_once(tmp_path: Path) -> None:
    words = ["$(PORT)", "--a=$(A)$(PORT)$(UNKNOWN)", "$$(PORT)", "$(HOME)", "$(B)"]
    program = BuildProgram([sys.executable, "-c", DUMP, *words], env={"A": "$(PORT)", "B": "build"})
    arguments, _, _ = dump(tmp_path, program, "$(PORT)", PORT="20000", B="pod $HOME `id`")
    assert arguments == [
        "20000",
        "--a=$(PORT)20000$(UNKNOWN)",
        "$(PORT)",
        "/s",
        "pod $HOME `id`",
        "20000",
    ]


def test_variables_of_the_pod_override_those_of_the_build_and_the_defaults(tmp_path: Path) -> None:
    program = BuildProgram([sys.executable, "-c", DUMP], env={"MODE": "build", "LANG": "de"})
    _, environment, _ = dump(tmp_path, program, MODE="pod", HOME="/own")
    expected = {
        "MODE": "pod",
        "HOME": "/own",
        "LANG": "de",
        "TMPDIR": "/s",
        "USER": "server",
        "LOGNAME": "server",
    }
    assert expected.items() <= environment.items()


def test_program_runs_in_its_folder_and_replaces_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "root/deep down"
    folder.mkdir(parents=True)
    (folder / "run").write_text("#!/bin/sh\npwd; echo $PPID; exit 7\n")
    (folder / "run").chmod(0o755)
    started = Started(tmp_path, BuildProgram(["./run"], workdir="./deep down/"), check=True)
    assert started.status == 7
    assert started.output.splitlines()[0] == str(folder)
    assert not started.last_words


def test_program_is_found_on_the_path_of_the_build(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/mine").write_text("#!/bin/sh\necho found\n")
    (tmp_path / "root/mine").chmod(0o755)
    program = BuildProgram(["mine"], env={"PATH": f"{tmp_path}/root:/bin"})
    assert Started(tmp_path, program).output == "found\n"


@pytest.mark.parametrize(
    ("command", "workdir", "kind", "words"),
    [
        ("nobody-has-this", ".", "program-not-found", "is not in any folder of PATH"),
        ("/opt/nothing", ".", "program-not-found", "/opt/nothing does not exist for game servers"),
        ("./missing", ".", "program-not-found", "missing is not in the build: add this file"),
        ("./data", ".", "not-executable", "chmod +x data"),
        ("./text", ".", "no-interpreter", "text names no interpreter"),
        ("./windows", ".", "windows-line-ends", "dos2unix windows"),
        ("sh", "gone", "program-not-found", "the folder gone is not in the build"),
    ],
)
def test_program_that_cannot_start_leaves_a_sentence(
    tmp_path: Path, command: str, workdir: str, kind: str, words: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name, content, mode in (
        ("data", "x", 0o644),
        ("text", "echo x\n", 0o755),
        ("windows", "#!/bin/sh\r\n", 0o755),
    ):
        (root / name).write_bytes(content.encode())
        (root / name).chmod(mode)
    started = Started(tmp_path, BuildProgram([command], workdir=workdir), check=True)
    assert started.status == 127
    assert started.last_words.startswith(f"{START_PROBLEM} {kind} ")
    assert words in started.last_words
    assert str(tmp_path) not in started.last_words


def test_interpreter_of_another_image_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/opt/only-in-the-runner\n")
    (tmp_path / "run").chmod(0o755)
    assert find_problem(BuildProgram(["./run"]), tmp_path) is None


def test_prepared_folder_has_an_executable_start_script(node: Node, tmp_path: Path) -> None:
    fetch = node.add(build(["sh", "-c", "exit 3"], env={"A": "1"}), args=("x",), variables=("B",))
    prepare("127.0.0.1", fetch, tmp_path)
    start = tmp_path / "start"
    assert start.stat().st_mode & 0o777 == 0o755
    keeper = "/hosting/build/keeper --container"
    assert start.read_text().splitlines()[-1] == f"exec {keeper} sh -c 'exit 3' x"
    assert os.access(tmp_path / "keeper", os.X_OK)
    assert "export A=1" in start.read_text()
    assert read_program(tmp_path / "root").command == ("sh", "-c", "exit 3")


def test_start_of_a_pod_waits_for_no_large_import() -> None:
    """The native module and the libraries of unused compressions take a third of the imports."""
    source = "import sys, pyservice.node.fetch_build; print(*sys.modules)"
    command = [sys.executable, "-c", source]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyservice._native", "zstandard", "lz4"} & set(loaded)
