"""Listening sockets of the service: opened by this process, or inherited.

The supervisor keeps the sockets open while a plane restarts, and systemd while the service restarts.
Clients then wait in the backlog instead of being refused.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

from pyservice.settings import ListenAddress, Settings
from pyservice.settings.sections import InheritedSocket
from pyservice.settings.socket_activation import passed_descriptors

LISTENERS_OF_ROLE: Final = {"data": ("http", "grpc", "metrics"), "control": ("cdn",)}
"""Names of the sockets that each plane serves. They are also the names of their settings.

Without the front, the gRPC server opens its port itself.
"""
LISTENER_NAMES: Final = tuple(name for names in LISTENERS_OF_ROLE.values() for name in names)


class ActivationFailed(Exception):
    """systemd passed sockets that the service cannot use."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def listen(address: ListenAddress, backlog: int, *, is_shared: bool = False) -> socket.socket:
    """Opens a listening socket. Raises OSError with the address in its message.

    Several processes of one user can have a shared address. Each gets a part of the connections.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if is_shared:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(where)
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        message = f"cannot listen on {address}: {error.strerror or error}"
        # An OSError with two arguments has the type of its number, and another text.
        failed = OSError(message)
        failed.errno = error.errno
        raise failed from None
    listener.setblocking(False)
    return listener


def bound_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return str(ListenAddress(host, port))


def open_listeners(
    settings: Settings, names: tuple[str, ...], inherited: Mapping[str, int]
) -> dict[str, socket.socket]:
    """Returns the sockets of these names. Opens those that are not inherited. Raises OSError.

    `inherited` has descriptors by name. The returned sockets own them.
    """
    listeners: dict[str, socket.socket] = {}
    try:
        for name in names:
            if _opens_itself(name, settings):
                continue
            if name in inherited:
                os.set_inheritable(inherited[name], False)
                listeners[name] = socket.socket(fileno=inherited[name])
                listeners[name].setblocking(False)
            else:
                listeners[name] = listen(getattr(settings, name), settings.http_limits.backlog)
    except OSError:
        close_listeners(listeners)
        raise
    return listeners


def _opens_itself(name: str, settings: Settings) -> bool:
    return name == "grpc" and settings.front == "off"


def close_listeners(listeners: Mapping[str, socket.socket]) -> None:
    for listener in listeners.values():
        listener.close()


def activated_listeners(settings: Settings, *, has_edge_guard: bool = True) -> dict[str, int]:
    """Returns the descriptors of the sockets that systemd passed, by the name of their setting.

    Leaves out those of edge-guard, if this process runs it. Another role has sockets of its own
    under the same numbers. Raises ActivationFailed with all problems.
    """
    try:
        descriptors = passed_descriptors()
    except ValueError as error:
        raise ActivationFailed([str(error)]) from None
    listeners: dict[str, int] = {}
    problems = []
    for descriptor in descriptors:
        is_edge = InheritedSocket(descriptor) in (settings.edge.http, settings.edge.https)
        if has_edge_guard and is_edge:
            continue
        try:
            name = _name_of(descriptor, settings)
            if name in listeners:
                raise ValueError(f"has the address of {name}, like fd:{listeners[name]}")
            listeners[name] = descriptor
        except ValueError as error:
            problems.append(f"fd:{descriptor} of systemd: {error}: change the socket unit")
    if problems:
        raise ActivationFailed(problems)
    return listeners


def _name_of(descriptor: int, settings: Settings) -> str:
    """Returns the name of the setting with the address of the socket. Raises ValueError.

    systemd names whole units and not single sockets, so names cannot tell the sockets apart.
    """
    bound = _tcp_address(descriptor)
    address = ListenAddress(*bound)
    for name in LISTENER_NAMES:
        if bound == _resolved(getattr(settings, name)):
            if _opens_itself(name, settings):
                raise ValueError(f"listens on {address}, but the gRPC server opens its port itself")
            return name
    names = ", ".join(LISTENER_NAMES)
    raise ValueError(f"listens on {address}, and no setting of {names} has this address")


def _tcp_address(descriptor: int) -> tuple[str, int]:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6)
            if is_tcp and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                host, port = listener.getsockname()[:2]
                return host, port
    except OSError:
        pass
    raise ValueError("is no listening TCP socket")


def _resolved(address: ListenAddress) -> tuple[str, int] | None:
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return None
    host, port = found[0][4][:2]
    return str(host), int(port)
