"""Listening sockets of the service, opened or passed by systemd."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pyservice.process import listening_sockets
from pyservice.process.listening_sockets import (
    ActivationFailed,
    activated_listeners,
    bound_address,
    close_listeners,
    open_listeners,
)
from pyservice.settings import Settings, load
from tests.support.loopback import FREE_PORT, OWN_ADDRESS

NAMES: Final = ("http", "grpc", "cdn", "metrics")


@pytest.fixture
def sockets() -> Iterator[dict[str, socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(socket.create_server((OWN_ADDRESS, 0))) for name in NAMES}


def _settings(folder: Path, sockets: dict[str, socket.socket], *, front: str = "on") -> Settings:
    return load({"data_dir": folder, "front": front, **_addresses(sockets)}, environ={})


def _addresses(sockets: dict[str, socket.socket]) -> dict[str, str]:
    return {name: bound_address(listener) for name, listener in sockets.items()}


def _pass(monkeypatch: pytest.MonkeyPatch, *descriptors: int) -> None:
    monkeypatch.setattr(listening_sockets, "passed_descriptors", lambda: descriptors)


def test_activated_sockets_have_the_names_of_their_settings(
    tmp_path: Path, sockets: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = {name: sockets[name].fileno() for name in NAMES}
    _pass(monkeypatch, *descriptors.values())
    assert activated_listeners(_settings(tmp_path, sockets)) == descriptors
    _pass(monkeypatch)
    assert activated_listeners(_settings(tmp_path, sockets)) == {}


def test_sockets_of_edge_guard_are_no_sockets_of_the_planes(
    tmp_path: Path, sockets: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((OWN_ADDRESS, 0)) as public:
        edge = {"http": f"fd:{public.fileno()}"}
        settings = load({"data_dir": tmp_path, "edge": edge, **_addresses(sockets)}, environ={})
        _pass(monkeypatch, public.fileno(), sockets["http"].fileno())
        assert activated_listeners(settings) == {"http": sockets["http"].fileno()}


def test_role_without_edge_guard_has_a_socket_of_its_own_under_the_same_number(
    tmp_path: Path, sockets: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = sockets["http"].fileno()
    edge = {"http": f"fd:{number}"}
    settings = load({"data_dir": tmp_path, "edge": edge, **_addresses(sockets)}, environ={})
    _pass(monkeypatch, number)
    assert activated_listeners(settings, has_edge_guard=False) == {"http": number}


def test_every_unusable_socket_is_reported(
    tmp_path: Path, sockets: dict[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path, sockets, front="off")
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.create_server((OWN_ADDRESS, 0)))
        unbound = stack.enter_context(socket.socket())
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        copy = stack.enter_context(sockets["http"].dup())
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(str(tmp_path / "socket"))
        local.listen()
        file = stack.enter_context((tmp_path / "file").open("wb"))
        passed = [sockets["http"], copy, other, sockets["grpc"], unbound, datagrams, local]
        numbers = [*(one.fileno() for one in passed), file.fileno()]
        _pass(monkeypatch, *numbers)
        with pytest.raises(ActivationFailed) as failed:
            activated_listeners(settings)
        reasons = [
            f"has the address of http, like fd:{numbers[0]}",
            f"listens on {bound_address(other)}, and no setting of http, grpc, metrics, cdn has this address",
            f"listens on {settings.grpc}, but the gRPC server opens its port itself",
            *["is no listening TCP socket"] * 4,
        ]
    assert failed.value.problems == [
        f"fd:{number} of systemd: {reason}: change the socket unit"
        for number, reason in zip(numbers[1:], reasons, strict=True)
    ]


def test_inherited_sockets_are_used_and_others_opened(
    tmp_path: Path, sockets: dict[str, socket.socket]
) -> None:
    settings = load({"data_dir": tmp_path, "http": FREE_PORT, "metrics": FREE_PORT}, environ={})
    descriptor = os.dup(sockets["http"].fileno())
    os.set_inheritable(descriptor, True)
    listeners = open_listeners(settings, ("http", "metrics"), {"http": descriptor})
    assert listeners["http"].fileno() == descriptor
    assert bound_address(listeners["http"]) == bound_address(sockets["http"])
    assert listeners["metrics"].getsockname()[1] > 0
    for listener in listeners.values():
        assert not listener.get_inheritable()
        assert not listener.getblocking()
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    close_listeners(listeners)


def test_used_address_is_named_and_leaves_no_socket(
    tmp_path: Path, sockets: dict[str, socket.socket]
) -> None:
    used = bound_address(sockets["http"])
    settings = load({"data_dir": tmp_path, "http": FREE_PORT, "metrics": used}, environ={})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=f"cannot listen on {used}: Address already in use") as failed:
        open_listeners(settings, ("http", "metrics"), {})
    assert failed.value.errno == errno.EADDRINUSE
    assert len(os.listdir("/proc/self/fd")) == before
