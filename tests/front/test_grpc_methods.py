from __future__ import annotations

from pyservice.front.grpc_methods import methods
from pyservice.schema.methods import METHODS, STREAMS
from pyservice.transport import TransportSettings

OWN = {"hosting.v1.Matchmaker.PlayerConnected", "hosting.v1.Matchmaker.SetLobbyState", *STREAMS}


def test_methods_contain_every_operation_and_stream() -> None:
    found = methods(TransportSettings(message_limit_bytes=1_000), OWN)
    by_path = {method.path: method for method in found}
    assert {method.grpc_path for method in METHODS.values()} <= by_path.keys()
    assert len(found) == len(by_path) == len(METHODS) + len(STREAMS)
    connected = by_path["/hosting.v1.Matchmaker/PlayerConnected"]
    assert connected == (connected.path, "connected", False, 1_000, True, False)
    assert by_path["/hosting.v1.Matchmaker/SetLobbyState"].message_limit_bytes == 65_536
    assert by_path["/hosting.v1.Groups/GetGroup"].is_control
    stream = by_path["/hosting.v1.Events/StreamLiveEvents"]
    assert (stream.slug, stream.is_control, stream.is_stream) == ("live_events", False, True)
    large = methods(TransportSettings(message_limit_bytes=1_000_000), OWN)
    assert {method.message_limit_bytes for method in large if method.is_stream} == {65_536}
