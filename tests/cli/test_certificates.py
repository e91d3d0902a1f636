from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyservice.network.node_names import SERVICE_HOST, host_of_node
from pyservice.rpc.node_certificates import CertificatesUnusable, NodeCertificates
from pyservice.transport.native import PublicCertificate
from tests.support.service_process import clean_environment

DAY_S = 86_400
HOUR_S = 3_600


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyservice", "certificates", *words],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def is_signed_by(authority: Path, folder: Path, after_s: int = 0) -> bool:
    """Checks a certificate as a machine with a clock that is ahead by `after_s`."""
    time_s = ("-attime", str(int(time.time()) + after_s))
    command = ["openssl", "verify", *time_s, "-CAfile", str(authority), str(folder / "tls.crt")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_certificates_have_their_names_and_can_be_renewed(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    made = run("--out", str(folder), "--node", "n1", "--node", "pool-a.example.com", "--days", "30")
    names = {SERVICE_HOST: "service", **{host_of_node(n): n for n in ("n1", "pool-a.example.com")}}
    lines = [f"{host}: {folder / name}" for host, name in names.items()]
    assert (made.returncode, made.stdout.splitlines(), made.stderr) == (0, lines, "")
    for host, name in names.items():
        NodeCertificates(folder / name, host)
        for after_s in (0, -HOUR_S, HOUR_S):
            assert is_signed_by(folder / "ca.crt", folder / name, after_s)
        assert (folder / name / "tls.key").stat().st_mode & 0o777 == 0o600
        end_s = PublicCertificate.read(folder / name / "tls.crt", folder / name / "tls.key").end_s()
        assert end_s is not None
        assert abs(end_s - time.time() - 30 * DAY_S) < DAY_S / 2
    with pytest.raises(CertificatesUnusable, match=r"has no name n2\.node\.hosting"):
        NodeCertificates(folder / "n1", host_of_node("n2"))
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600

    of_n1, authority = (folder / "n1/tls.crt").read_bytes(), (folder / "ca.crt").read_bytes()
    assert run("--out", str(folder), "--node", "n2").returncode == 0
    assert (folder / "ca.crt").read_bytes() == authority
    assert (folder / "n1/tls.crt").read_bytes() == of_n1
    NodeCertificates(folder / "n2", host_of_node("n2"))
    assert is_signed_by(folder / "ca.crt", folder / "n2")


def test_all_wrong_names_are_reported(tmp_path: Path) -> None:
    made = run("--out", str(tmp_path / "none"), "--node", "N_1", "--node", "service")
    rule = "must be the name of a node as in `kubectl get nodes`, at most 240 characters"
    assert (made.returncode, made.stderr.splitlines()) == (
        1,
        [
            f"pyservice: certificates: --node N_1: {rule}",
            "pyservice: certificates: --node service: this folder has the certificate of the service",
        ],
    )
    assert not (tmp_path / "none").exists()


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    (folder / "n1").write_text("a file")
    made = run("--out", str(folder), "--node", "n1")
    assert made.returncode == 1
    assert made.stderr.startswith(f"pyservice: certificates: {folder}: ")
