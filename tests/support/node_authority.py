"""Authority of tests for the certificates of the service and of nodes, by the program openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from pyservice.network.node_names import SERVICE_HOST, host_of_node


class NodeAuthority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        subject = ("-subj", "/CN=authority of a test", "-days", "2")
        usages = ("-addext", "keyUsage=critical,keyCertSign")
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
        self._run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", *subject, *usages)

    def issue_to_service(self, folder: Path, days: int = 1) -> Path:
        return self.issue(folder, SERVICE_HOST, days=days)

    def issue_to_node(self, folder: Path, node: str, days: int = 1) -> Path:
        return self.issue(folder, host_of_node(node), days=days)

    def issue(self, folder: Path, *hosts: str, days: int = 1) -> Path:
        """Writes `ca.crt`, `tls.crt` and `tls.key` with names of hosts into a folder, and returns it.

        Certificates with a negative number of days have expired.
        """
        folder.mkdir(exist_ok=True)
        extensions = self._folder / "extensions"
        names = ",".join(f"DNS:{host}" for host in hosts)
        extensions.write_text(f"subjectAltName={names}\n" if names else "")
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
        self._run("req", "-new", *new, "-keyout", "new.key", "-out", "new.csr", "-subj", "/CN=test")
        signer = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        self._run("x509", "-req", "-in", "new.csr", *signer, "-days", str(days), "-out", "new.crt")
        sources = {"ca.crt": "ca.crt", "tls.crt": "new.crt", "tls.key": "new.key"}
        for name, source in sources.items():
            fresh = folder / f"{name}.new"
            fresh.write_bytes((self._folder / source).read_bytes())
            fresh.replace(folder / name)
        return folder

    def _run(self, *words: str) -> None:
        command: Sequence[str] = ("openssl", *words)
        result = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
