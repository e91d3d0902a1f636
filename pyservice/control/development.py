"""What is asked for with a `dev_` token: its rules, and what the data plane is told to answer (decisions 3)."""

from __future__ import annotations

from typing import Any, Final

from pyservice.errors import FieldProblem, field_problem
from pyservice.hosts import is_host
from pyservice.ids import PORT_NAME_MAX, is_name_id
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.v1 import tokens_pb2 as pb

_PROTOCOLS: Final = ("http", "https", "tcp", "tcp_tls", "udp")


def development_problems(request: pb.CreateDevelopmentTokenRequest) -> list[FieldProblem]:
    """What is wrong with it."""
    problems: list[FieldProblem] = []
    if request.HasField("hostname") and not is_host(request.hostname):
        sentence = "must be a host name or an IP address, without scheme and port"
        problems.append(field_problem(["hostname"], "invalid", sentence))
    for name, port in sorted(request.ports.items()):
        path = ["ports", name]
        if not is_name_id(name, PORT_NAME_MAX):
            sentence = "must be 1 to 26 of a-z, 0-9 and single dashes inside"
            problems.append(field_problem(path, "invalid", sentence))
        if port.protocol not in _PROTOCOLS:
            sentence = f"must be one of {', '.join(_PROTOCOLS)}"
            problems.append(field_problem([*path, "protocol"], "not-allowed", sentence))
        if port.HasField("port") and port.HasField("port_range"):
            sentence = "must not stand beside port"
            problems.append(field_problem([*path, "port_range"], "not-allowed", sentence))
        if port.HasField("port_range") and port.port_range.min > port.port_range.max:
            sentence = "must be at least min"
            problems.append(field_problem([*path, "port_range", "max"], "too-low", sentence))
    return problems


def mock_answers(
    request: pb.CreateDevelopmentTokenRequest, token_id: str, expires_ms: int
) -> configuration_pb2.DevelopmentToken:
    """What the data plane answers to the token."""
    answers = configuration_pb2.DevelopmentToken(
        token_id=token_id,
        expires_ms=expires_ms,
        hostname=request.hostname if request.HasField("hostname") else None,
    )
    for name, port in request.ports.items():
        made: Any = answers.ports[name]
        made.protocol = port.protocol
        if port.HasField("port"):
            made.port = port.port
        if port.HasField("port_range"):
            made.port_range.min = port.port_range.min
            made.port_range.max = port.port_range.max
    return answers
