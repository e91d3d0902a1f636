"""Ctrl-C, and a restart of the service, at each request of `pyservice deploy`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.runtime.run_folder import RunFolder
from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Ended
from tests.support.forward_proxy import ForwardProxy, Moment, RequestLost, forward_proxy
from tests.support.full_service import FullService
from tests.support.game_folder import SERVER, SITE, GameFolder
from tests.support.game_folder import folder as folder
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

MIDDLE: Final = (
    ("POST .*/builds", Moment.ANSWERED),
    ("PUT /.objects/.*", Moment.HALF_SENT),
    ("POST .*/complete", Moment.ANSWERED),
    ("POST .*/versions", Moment.ANSWERED),
    ("POST .*/trials", Moment.ANSWERED),
    ("GET .*/logs/lobbies/ID", Moment.ANSWERED),
    ("DELETE .*/lobbies/ID", Moment.ARRIVED),
    ("PUT .*/version", Moment.ANSWERED),
)
"""Moments at which the service restarts. The last request that matches is meant."""
Point = tuple[str, int]
"""A request of a deployment: its name, and how many of this name came before."""


@pytest.fixture
def proxy() -> Iterator[ForwardProxy]:
    with forward_proxy() as proxy:
        yield proxy


class Requests:
    """Counts the requests of one deployment. A poll that repeats its request counts once."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def point(self, name: str) -> Point:
        if not self.points or self.points[-1][0] != name:
            earlier = sum(name == other for other, _ in self.points)
            self.points.append((name, earlier))
        return self.points[-1]


class Deployment:
    """A `pyservice deploy` in a process of its own, which sends its requests through the proxy."""

    def __init__(self, folder: GameFolder, proxy: ForwardProxy) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        self._proxy = proxy
        self._is_started = threading.Event()

    def write(self, content: str) -> None:
        """Gives the game server, the site and the configuration new content."""
        (self.folder.path / "server.py").write_text(f"{SERVER}\n# {content}\n")
        page = self.folder.path / "page"
        page.mkdir(exist_ok=True)
        (page / "index.html").write_text(content)
        self.folder.write(f'docker.env.CONTENT = "{content}"\n{SITE}')

    def run(self, act: Callable[[Point, Moment], None]) -> Ended:
        """Deploys. Calls `act` at each moment of each request."""
        requests = Requests()

        def when(name: str, moment: Moment) -> None:
            self._is_started.wait()
            act(requests.point(name), moment)

        self._proxy.when = when
        self._is_started.clear()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyservice_cli", "deploy"],
            cwd=self.folder.path,
            env={**os.environ, **self._proxy.environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._is_started.set()
        output, errors = self.process.communicate(timeout=PATIENCE_S * 4)
        return Ended(self.process.returncode, output, errors)

    def points(self) -> list[Point]:
        """Deploys, and returns its requests in their order."""
        seen: dict[Point, None] = {}
        ended = self.run(lambda point, _: seen.setdefault(point))
        assert ended.status == 0, ended
        return list(seen)

    def running_content(self) -> str:
        """Returns the content that the namespace runs. The site and the configuration agree."""
        namespace = self.folder.api.get(self.folder.place)["namespace"]
        path = f"{self.folder.game}/versions/{namespace['version_id']}"
        config = self.folder.api.get(path)["version"]["config"]
        content = config["matchmaker"]["game_modes"]["duel"]["docker"]["env"]["CONTENT"]

        def is_served() -> bool:
            with urllib.request.urlopen(f"{namespace['site_url']}index.html") as page:
                return bool(page.read().decode() == content)

        until(is_served)
        return str(content)

    def have_trials_ended(self) -> bool:
        return all("stopped" in lobby["status"] for lobby in self.folder.lobbies())


@pytest.fixture
def deployment(folder: GameFolder, proxy: ForwardProxy) -> Deployment:
    return Deployment(folder, proxy)


def interrupt(deployment: Deployment, point: Point, moment: Moment) -> Ended:
    """Sends SIGINT to a deployment at one moment. It gets no answer to a request that has just arrived."""
    is_sent = threading.Event()

    def act(now: Point, then: Moment) -> None:
        if (now, then) == (point, moment) and not is_sent.is_set():
            is_sent.set()
            assert deployment.process is not None
            deployment.process.send_signal(signal.SIGINT)
            if then is Moment.ARRIVED:
                raise RequestLost

    ended = deployment.run(act)
    assert is_sent.is_set(), ended
    return ended


INTERRUPTED = "pyservice: INTERRUPTED: Interrupted.\nRun the same command again to go on.\n"


@pytest.mark.parametrize(
    "moment", [Moment.ARRIVED, Moment.ANSWERED], ids=lambda moment: moment.name
)
def test_ctrl_c_at_any_request(deployment: Deployment, moment: Moment) -> None:
    deployment.write("first")
    deployment.folder.deployed("--no-trial")
    deployment.write("second")
    points = deployment.points()
    old = "second"
    for number, point in enumerate(points):
        new = f"content {number}"
        deployment.write(new)
        ended = interrupt(deployment, point, moment)
        assert ended.status == ExitStatus.INTERRUPTED, (point, ended)
        # On a busy machine, the lines of long waits come before.
        assert ended.errors.endswith(INTERRUPTED), (point, ended)
        assert deployment.running_content() in (old, new), point
        until(deployment.have_trials_ended)
        again = deployment.folder.call("deploy")
        assert again.status == 0, (point, again)
        assert deployment.running_content() == new, point
        old = new


def test_ctrl_c_during_the_first_deployment(deployment: Deployment) -> None:
    deployment.write("first")
    points = deployment.points()
    assert ("POST /cloud/games", 0) in points[:5]
    for point in points[:5]:
        deployment.folder.call("destroy", "--yes")
        ended = interrupt(deployment, point, Moment.ANSWERED)
        assert ended.status == ExitStatus.INTERRUPTED, (point, ended)
        again = deployment.folder.call("deploy", "--no-trial")
        assert again.status == 0, (point, again)
        assert deployment.running_content() == "first", point


def keepers(data_dir: Path) -> Iterator[Path]:
    """Yields the processes that keep game servers, and the one that forks them."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_keeper = (process / "comm").read_text() == "hosting-keeper\n"
            if is_keeper and str(data_dir) in (process / "cmdline").read_text():
                yield process


def has_started_run(data_dir: Path) -> bool:
    """Returns whether a game server has started. Otherwise, a new service would start it again."""
    return any(RunFolder(one).was_started() for one in (data_dir / "servers").glob("[0-9a-f]*"))


def killed_keepers(data_dir: Path) -> list[Path]:
    found = list(keepers(data_dir))
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)
    return found


def restart(
    service: FullService,
    number: signal.Signals,
    deployment: Deployment,
    point: Point,
    moment: Moment,
    *,
    ends_servers: bool = False,
) -> Ended:
    """Ends the service at one moment of a deployment, and starts it again on the same ports.

    With `ends_servers`, its game servers end too, as with their machine.
    """
    starts: list[threading.Thread] = []

    def start_again() -> None:
        assert service.process is not None
        service.process.wait(PATIENCE_S)
        if ends_servers:
            until(lambda: not killed_keepers(service.data_dir))
        service.start()

    def act(now: Point, then: Moment) -> None:
        if (now, then) == (point, moment) and not starts:
            assert service.process is not None
            if ends_servers:
                until(lambda: has_started_run(service.data_dir))
            service.process.send_signal(number)
            starts.append(threading.Thread(target=start_again))
            starts[0].start()
            raise RequestLost

    ended = deployment.run(act)
    assert starts, ended
    starts[0].join()
    return ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
def test_restart_of_the_service(
    full_service: FullService, deployment: Deployment, number: signal.Signals
) -> None:
    deployment.write("first")
    deployment.folder.deployed("--no-trial")
    deployment.write("second")
    points = deployment.points()
    old = "second"
    for name, moment in MIDDLE:
        new = f"{name} {moment.name}"
        deployment.write(new)
        point = next(one for one in reversed(points) if re.fullmatch(name, one[0]))
        ended = restart(full_service, number, deployment, point, moment)
        # On a busy machine the start takes longer than the command waits.
        assert ended.status in (ExitStatus.DONE, ExitStatus.UNREACHABLE), (point, ended)
        if ended.status == ExitStatus.UNREACHABLE:
            assert "A proxy answers, and does not reach the service" in ended.errors, ended
        assert deployment.running_content() in ((new,) if ended.status == 0 else (old, new)), point
        until(deployment.have_trials_ended)
        again = deployment.folder.call("deploy")
        assert again.status == 0, (point, again)
        assert deployment.running_content() == new, point
        old = new


def test_trial_that_a_restart_loses_is_started_again(
    full_service: FullService, deployment: Deployment
) -> None:
    point = (f"POST {deployment.folder.game}/versions/ID/trials", 0)
    deployment.write("content")
    ended = restart(
        full_service, signal.SIGKILL, deployment, point, Moment.ANSWERED, ends_servers=True
    )
    assert ended.status == 0, ended
    assert "the game server of the mode duel is ready" in ended.output
    assert deployment.running_content() == "content"
    until(deployment.have_trials_ended)
    newest, lost = deployment.folder.lobbies()
    assert lost["failure"] == "LOST"
    assert newest["version_id"] == lost["version_id"]
    assert "failure" not in newest
