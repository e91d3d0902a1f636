"""`pyservice check-config` prints every problem of settings and feed, exits with 1 and starts
nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pyrage
import pytest
from typer.testing import CliRunner

from pyservice.cli.commands import app
from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from tests.support.certificates import Certificates
from tests.support.command_line import run
from tests.support.namespace_configurations import OTHER_NAMESPACE_ID, document, version


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PYSERVICE_")]:
        monkeypatch.delenv(name)


def _problems(*words: str, environ: dict[str, str] | None = None) -> list[str]:
    result = CliRunner().invoke(app, ["check-config", *words], env=environ)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    lines = result.stderr.splitlines()
    return [line for line in lines if not line.startswith("pyservice: warning: ")]


def _feed(folder: Path, *namespaces: object) -> str:
    path = folder / "feed.json"
    path.write_text(json.dumps({"namespaces": namespaces}))
    return str(path)


def test_valid_settings_are_ok(tmp_path: Path) -> None:
    result = run(tmp_path / "data", "check-config", "--feed", _feed(tmp_path, document()))
    assert (result.returncode, result.stdout, result.stderr) == (0, "ok\n", "")
    assert not (tmp_path / "data").exists()


def test_every_settings_problem_is_printed(tmp_path: Path) -> None:
    config = tmp_path / "service.toml"
    config.write_text("nonsense = 1\nlame_duck_ms = -1\n")
    environ = {"PYSERVICE_GRPC": "x", "PYSERVICE_UNKNOWN": "1"}
    words = ("--config", str(config), "--http", "nowhere", "--set", "journal.segment_bytes=1")
    problems = _problems(*words, "--set", "x.y=2", environ=environ)
    names = ("nonsense", "lame_duck_ms", "http", "journal.segment_bytes", "grpc", "UNKNOWN", "x")
    assert [sum(f"{name}: " in problem for problem in problems) for name in names] == [1] * 7
    assert len(problems) == 7
    assert "pyservice: x: is not a setting (flag)" in problems


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "nonsense"), "must be NAME=VALUE"),
        (("--cdn", "127.0.0.1:8080"), "cdn: 127.0.0.1:8080 is also the address of http"),
        (("--cdn", "nowhere"), "cdn: must be host:port"),
        (
            ("--set", "database_url=postgresql://me:se@cret@db.example/games"),
            "database_url: has an @ in the user name or password: write %40 (flag)",
        ),
    ],
)
def test_wrong_flag_is_reported(words: tuple[str, ...], message: str) -> None:
    [problem] = _problems(*words)
    assert message in problem


def test_every_feed_problem_is_printed(tmp_path: Path) -> None:
    too_many = document(versions=[version(duel={"max_players": 300})])
    other = document(namespace_id=OTHER_NAMESPACE_ID, name_id="-")
    problems = str(_problems("--feed", _feed(tmp_path, too_many, other)))
    assert "arena/prod: versions.0.matchmaker.game_modes.duel.max_players" in problems
    assert "arena/-: name_id" in problems


def test_settings_problems_do_not_hide_feed_problems(tmp_path: Path) -> None:
    wrong = version(duel={"max_players": 300, "regions": {"north": {}}})
    feed = _feed(tmp_path, document(versions=[wrong]))
    problems = _problems("--feed", feed, "--set", "lame_duck_ms=x")
    for name in ("lame_duck_ms", "duel.max_players", "duel.regions.north"):
        assert sum(name in problem for problem in problems) == 1
    assert len(problems) == 3
    # The limits of the operator are unknown here, so no problem names them.
    unknown = ("--set", 'regions=[{"name_id": "A"}]', "--set", "player_limit_max=x")
    assert "duel" not in str(_problems("--feed", feed, *unknown))
    assert len(_problems("--feed", str(tmp_path / "none.json"), "--http", "x")) == 2


def test_unusable_feed_is_reported(tmp_path: Path) -> None:
    [problem] = _problems("--feed", _feed(tmp_path, document(), document(display_name="Other")))
    assert "namespaces.1.namespace_id: occurs more than once" in problem
    (tmp_path / "feed.json").write_text('{"namespaces": ' + "[" * 200_000)
    [problem] = _problems("--feed", str(tmp_path / "feed.json"))
    assert "nested too deeply" in problem


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:se@cret@db.example/games", "has an @"),
        ("postgresql://me:se/cret@db.example/games", "write %2F or %3F"),
        ("postgresql://me:12/cret@db.example/games", "write %2F or %3F"),
        ("postgresql://me:se?cret@db.example/games", "write %2F or %3F"),
        ("postgresql://me:12?cret@db.example/games", "write %2F or %3F"),
        ("postgresql://me:se@cr/et@db.example/games", "write %2F or %3F"),
        ("postgresql://me:se#cret@db.example/games", "has a #: write %23"),
        ("postgresql://me:se%40cret@db.example:port/games", "host or port"),
        ("postgresql://me:secret@db.example:99999/games", "host or port"),
        ("postgresql://me:secret@[db.example]/games", "host or port"),
        ("postgresql://me:secret@" + "one," * 40 + "two:x/games", "host or port"),
        ("mysql://me:secret@db.example/games", "must be a URL such as postgresql://"),
        ("sqlite:///secret.db", "must be a URL such as postgresql://"),
        ("secret", "must be a URL such as postgresql://"),
        ("postgresql+psycopg2", "must be a URL such as postgresql://"),
    ],
)
def test_wrong_database_url_is_reported_without_secrets(url: str, message: str) -> None:
    [problem] = _problems("--set", f"database_url={url}")
    assert message in problem
    assert not any(word in problem for word in ("me:", "se@", "cret", "12"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:se%40cret@db.example/games",
        "postgresql://me:se%2Fcr%23et%3F@db.example:5432/games?sslmode=require",
        "postgresql+asyncpg://me@[::1]:5432/games",
        "postgresql://one.example:5432,two.example:5433/games",
        "postgresql://db.example/games?password=w@rd",
        "postgresql://db.example?dbname=games",
        "postgresql:///games?host=/run/postgresql",
        "postgresql:///a@b",
    ],
)
def test_escaped_database_url_is_ok(url: str) -> None:
    result = CliRunner().invoke(app, ["check-config", "--set", f"database_url={url}"])
    assert (result.exit_code, result.stdout) == (0, "ok\n"), result.output


def test_recipient_of_backups_that_is_no_public_key_is_reported(tmp_path: Path) -> None:
    identity = pyrage.x25519.Identity.generate()
    keys = [str(identity.to_public()), str(identity), "age1nonsense"]
    words = ("--set", f"backup.recipients={json.dumps(keys)}", "--set", "lame_duck_ms=x")
    problems = _problems(*words)
    sentence = "must be a public key of age such as age1..., which age-keygen prints (flag)"
    assert f"pyservice: backup.recipients.1: {sentence}" in problems
    assert f"pyservice: backup.recipients.2: {sentence}" in problems
    assert sum("lame_duck_ms" in problem for problem in problems) == 1
    assert len(problems) == 3
    # The private key could be pasted by mistake.
    assert str(identity) not in str(problems)
    refused = run(tmp_path / "data", "serve", *words)
    assert (refused.returncode, refused.stderr.splitlines()) == (1, problems)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('database_url = "postgresql://me:word@localhost/games"', "database_url"),
        ('database_url = "postgresql://localhost/games?password=word"', "database_url"),
        (
            '[s3]\nbucket = "games"\naccess_key_id = "id"\nsecret_access_key = "word"',
            "s3.secret_access_key",
        ),
        ('database_url = "postgresql://me@localhost/games"', None),
    ],
)
def test_readable_file_with_secrets_gets_a_warning(
    text: str, names: str | None, mode: int, tmp_path: Path
) -> None:
    config = tmp_path / "service.toml"
    config.write_text(text)
    config.chmod(mode)
    result = CliRunner().invoke(app, ["check-config", "--config", str(config)])
    assert (result.exit_code, result.stdout) == (0, "ok\n"), result.output
    assert (
        result.stderr
        == CliRunner().invoke(app, ["check-config"], env={"PYSERVICE_CONFIG": str(config)}).stderr
    )
    if names is None or mode == 0o600:
        assert result.stderr == ""
    else:
        [line] = result.stderr.splitlines()
        assert line.startswith("pyservice: warning: ")
        assert f"({names})" in line
        assert "word" not in line


def test_names_of_certificates_are_compared_with_the_settings(tmp_path: Path) -> None:
    names = ["api.example", "*.lobby.local.play.example", "*.server.local.play.example"]
    subprocess.run([EDGE_GUARD_BINARY, "ca", tmp_path / "certificates", *names], check=True)

    def config(*server_names: str) -> str:
        path = tmp_path / "service.toml"
        folder = tmp_path / "certificates"
        path.write_text(
            '[domains]\nmain = "api.example"\njob = "play.example"\n'
            '[edge]\nhttp = "0.0.0.0:80"\nhttps = "0.0.0.0:443"\n'
            f"[[edge.certificates]]\nserver_names = {json.dumps(server_names)}\n"
            f'cert = "{folder}/server.pem"\nkey = "{folder}/server.key"\n'
        )
        return str(path)

    [problem] = _problems("--config", config(*names, "local.play.example"))
    assert "edge.certificates.0.server_names: " in problem
    assert "has no name local.play.example; it has api.example, " in problem
    result = CliRunner().invoke(app, ["check-config", "--config", config(*names)])
    assert (result.exit_code, result.stdout) == (0, "ok\n"), result.output
    warnings = result.stderr.splitlines()
    assert "warning: no certificate for local.play.example: lobbies and servers with" in warnings[0]
    assert "warning: edge.certificates.0: " in warnings[1]
    assert "server.pem has no chain: clients that do not have the certificate of " in warnings[1]
    assert len(warnings) == 2
    (tmp_path / "certificates" / "server.key").write_text("none")
    [problem] = _problems("--config", config(*names, "local.play.example"))
    assert "edge.certificates.0: " in problem


def _with_certificate(folder: Path, **values: object) -> tuple[str, ...]:
    """Returns flags that let the API have the certificate of the folder."""
    pair = {f"tls.{name}": path for name, path in Certificates(folder).settings.items()}
    return tuple(
        word for name, value in (pair | values).items() for word in ("--set", f"{name}={value}")
    )


def test_all_that_clients_reject_in_the_certificate_of_the_api_is_printed(tmp_path: Path) -> None:
    Certificates(tmp_path).expire()
    urls = {"public_url": "https://play.example", "lobby_api_url": "https://10.0.0.1:8080"}
    problems = _problems(*_with_certificate(tmp_path, **urls))
    cert = f"pyservice: tls: {tmp_path}/server.pem"
    *others, expired = problems
    assert others == [
        f"{cert} has no name {host}; it has api.example.com"
        for host in ("10.0.0.1", "play.example")
    ]
    assert expired.startswith(f"{cert} expired on 20")


@pytest.mark.parametrize(
    ("values", "is_checked"),
    [
        ({"public_url": "https://other.example"}, True),
        ({"domains.main": "other.example"}, True),
        ({"public_url": "http://other.example"}, False),
        # A proxy ends TLS with a certificate of its own, unless it only forwards connections.
        ({"public_url": "https://other.example", "trusted_proxies": "10.0.0.1"}, False),
        (
            {
                "public_url": "https://other.example",
                "trusted_proxies": "10.0.0.1",
                "proxy_protocol": "true",
            },
            True,
        ),
        # Edge-guard serves the domain.
        ({"domains.main": "other.example", "edge.http": "127.0.0.1:80"}, False),
        ({"public_url": "https://api.example.com"}, False),
    ],
)
def test_certificate_needs_the_hosts_that_lead_clients_to_it(
    values: dict[str, object], is_checked: bool, tmp_path: Path
) -> None:
    Certificates(tmp_path).renew()
    result = CliRunner().invoke(app, ["check-config", *_with_certificate(tmp_path, **values)])
    assert (result.exit_code == 1) == is_checked, result.output
    assert ("has no name other.example; it has api.example.com" in result.stderr) == is_checked


def test_expired_certificate_of_edge_guard_is_a_problem(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.expire("play.example")
    entry = {"server_names": ["play.example"], **certificates.settings}
    [problem] = _problems("--set", f"edge.certificates={json.dumps([entry])}")
    assert problem.startswith(f"pyservice: edge.certificates.0: {tmp_path}/server.pem expired on")


def test_unsafe_settings_are_warnings(tmp_path: Path) -> None:
    flags = ("--http", "0.0.0.0:8080", "--metrics", "0.0.0.0:8090")
    changes = ("--set", "runtime.isolation=none", "--set", "runtime.memory_mb=1000000000")
    result = CliRunner().invoke(app, ["check-config", *flags, *changes])
    assert (result.exit_code, result.stdout) == (0, "ok\n"), result.output
    names = [line.split()[2] for line in result.stderr.splitlines()]
    assert names == ["http", "metrics", "runtime.isolation", "runtime.memory_mb"]


def test_quotas_that_let_one_identity_fill_the_memory_are_a_warning(tmp_path: Path) -> None:
    result = run(tmp_path / "data", "check-config", "--set", "quotas.groups=100")
    assert (result.returncode, result.stdout) == (0, "ok\n")
    assert "warning: quotas.groups and quotas.configuration_bytes let one identity" in result.stderr


def test_unusable_socket_of_systemd_is_printed() -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "many"}
    assert _problems(environ=environ) == [
        "pyservice: LISTEN_FDS=many: is no value of systemd; let a socket unit set it, or unset it"
    ]
