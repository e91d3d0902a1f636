"""A full disk under both planes: operations that write fail until there is space, all others
continue.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.contract import error_cases
from tests.contract.response_check import ResponseChecker
from tests.contract.scenario import BY_SLUG, Scenario, ServedGame, open_served_game
from tests.contract.service_errors import swept
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.supervised_service import SupervisedService, until

error_cases.load_areas()

DISK_MIB: Final = 48
SETTINGS: Final = {"journal": {"segment_bytes": 1 << 20}, "storage_reserve_bytes": 1 << 20}
STATE: Final = "." * 60_000


class OnDisk(SupervisedService):
    def __init__(self, folder: Path, disk: SmallDisk, settings: Any) -> None:
        super().__init__(folder, settings=settings)
        self.data_dir = disk.mount_point / "data"
        self.command_prefix = disk.command_prefix
        self._disk = disk

    def host_path(self, path: str) -> Path:
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{path}")

    def fill(self) -> Path:
        assert self.process is not None
        return self._disk.fill(self.process.pid)


@pytest.fixture
def _no_left_over() -> None:
    """Replaces the check of the shared data plane, because these tests start a service of their
    own.
    """


@pytest.fixture
def served_game(tmp_path: Path) -> Iterator[ServedGame]:
    disk = small_disk(tmp_path, DISK_MIB)
    with open_served_game(tmp_path, SETTINGS, partial(OnDisk, disk=disk)) as served_game:
        yield served_game


@pytest.mark.proof
def test_writes_fail_on_a_full_disk_and_reads_continue(served_game: ServedGame) -> None:
    writes = swept("STORAGE_FULL", test_writes_fail_on_a_full_disk_and_reads_continue)
    checker, service = ResponseChecker(served_game.document), served_game.service
    requested = {slug: _changing(served_game.scenario(), slug) for slug in BY_SLUG}

    def ask(slug: str) -> str:
        return checker.code(slug, service.client.send(requested[slug]))

    assert isinstance(service, OnDisk)
    scenario = served_game.scenario()
    numbers = itertools.count(1)
    assert scenario.call("set_state", body="small").status_code == 200
    filler = service.fill()
    _use_up(lambda: scenario.call("set_state", body=f"{next(numbers)}{STATE}"))
    # A disk without space for a large change may have space for a small one.
    _use_up(lambda: scenario.call("create_group", fields={"display_name": "Another"}))
    _use_up(lambda: scenario.call("reserve_version_name"))
    _use_up(lambda: scenario.call("set_mm_config", fields={"max_players": next(numbers)}))
    returned = {slug: ask(slug) for slug in requested}
    assert returned == {slug: "STORAGE_FULL" if slug in writes else "OK" for slug in requested}
    print(f"\n{dict(Counter(returned.values()))}")
    filler.unlink()
    for slug in writes:
        # The journal retries each second. The records retry at each request.
        healed = until(lambda slug=slug: _unless_full(ask(slug)))  # type: ignore[misc]
        assert healed == "OK", slug
    assert service.stop() == 0


def _changing(scenario: Scenario, slug: str) -> httpx.Request:
    if slug == "ready":
        lobby = scenario.attach(is_ready=False)
        return scenario.request(slug, bearer=lobby.token, token=None)
    if slug == "set_version":
        other = scenario.good("create_version", fields={"display_name": scenario.name})
        return scenario.request(slug, fields={"version_id": other["version_id"]})
    return scenario.request(slug)


def _use_up(ask: Callable[[], httpx.Response]) -> None:
    """Sends requests until the disk is full. If only the data plane is out of space, the change is
    stored.
    """
    for _ in range(DISK_MIB * (1 << 20) // len(STATE)):
        answer = ask()
        if answer.status_code != 200:
            problem = answer.json()
            if problem["code"] == "STORAGE_FULL":
                return
            assert problem["detail"].startswith("The change is stored"), answer.text
    raise AssertionError("the disk never gets full")


def _unless_full(code: str) -> str:
    return "" if code == "STORAGE_FULL" else code
