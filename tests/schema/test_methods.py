from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.api import annotations_pb2
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor

from pyservice.pb.hosting.internal.v1 import admin_pb2, configuration_pb2, feed_pb2
from pyservice.pb.hosting.v1 import events_pb2, matchmaker_pb2, options_pb2
from pyservice.schema.methods import (
    METHODS,
    STREAMS,
    descriptor_of,
    is_map,
    map_key,
    public_files,
    read_methods,
    read_streams,
)

ROOT = Path(__file__).parents[2]


def test_every_method_is_listed_with_its_stream() -> None:
    methods = [
        method
        for file in public_files()
        for service in file.services_by_name.values()
        for method in service.methods
    ]
    streams = {method.full_name for method in methods if method.server_streaming}
    assert set(METHODS) == {method.full_name for method in methods} - streams
    assert {f"{name.rpartition('.')[0]}.{stream.rpc_name}" for name, stream in STREAMS.items()} == (
        streams
    )
    for name, method in METHODS.items():
        assert method.name == name
        assert re.fullmatch(r"[a-z_]+", method.slug)
        assert method.template.startswith("/")


def test_method_reflects_its_annotations() -> None:
    method = METHODS["hosting.v1.Matchmaker.AttachLobby"]
    assert method.grpc_path == "/hosting.v1.Matchmaker/AttachLobby"
    assert method.request is matchmaker_pb2.AttachLobbyRequest
    assert method.response is matchmaker_pb2.AttachLobbyResponse
    assert (method.http_method, method.body_field) == ("POST", "*")
    assert method.path_fields == ("game_id", "namespace_id")
    assert not method.ignores_unknown


def test_unwrapped_bodies_and_responses_name_their_field() -> None:
    assert METHODS["hosting.v1.Matchmaker.SetLobbyState"].body_field == "state"
    assert METHODS["hosting.v1.Matchmaker.SetLobbyState"].body_limit_bytes == 64 * 1024
    assert METHODS["hosting.v1.Matchmaker.GetLobbyState"].response_field == "state"
    assert METHODS["hosting.v1.Matchmaker.FindLobby"].body_limit_bytes is None


def test_matchmaker_accepts_newer_clients() -> None:
    lenient = {method.template for method in METHODS.values() if method.ignores_unknown}
    assert all(template.startswith(("/matchmaker/", "/events/")) for template in lenient)
    strict = {method.template for method in METHODS.values()} - lenient
    assert all(template.startswith(("/cloud/", "/games/")) for template in strict)


def test_internal_services_have_no_route() -> None:
    for file in (admin_pb2, feed_pb2, configuration_pb2):
        with_options = [
            method.full_name
            for service in file.DESCRIPTOR.services_by_name.values()
            for method in service.methods
            if method.GetOptions().ByteSize()
        ]
        assert not with_options


def _declare(name: str, *, slug: str = "", path: str = "") -> FileDescriptor:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/{name}.proto",
        package=f"tests.{name}",
        syntax="proto3",
        dependency=["google/api/annotations.proto", "hosting/v1/options.proto"],
    )
    file.message_type.add(name="Nothing")
    message = f".tests.{name}.Nothing"
    method = file.service.add(name="Odd").method.add(
        name="Do", input_type=message, output_type=message
    )
    operation: Any = options_pb2.operation
    if slug:
        method.options.Extensions[operation].slug = slug
    if path:
        method.options.Extensions[annotations_pb2.http].get = path
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindFileByName(file.name)


@pytest.mark.parametrize(
    ("name", "slug", "path", "problem"),
    [
        ("without_slug", "", "/x", "needs an operation slug"),
        ("without_path", "x", "", "needs an operation slug and an HTTP rule"),
        ("without_field", "x", "/x/{lobby_id}", "the path names"),
    ],
)
def test_incomplete_declaration_is_rejected_by_name(
    name: str, slug: str, path: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=rf"Odd\.Do: {problem}"):
        read_methods([_declare(name, slug=slug, path=path)])


def test_duplicate_slug_is_rejected() -> None:
    with pytest.raises(ValueError, match="slug find"):
        read_methods([matchmaker_pb2.DESCRIPTOR, matchmaker_pb2.DESCRIPTOR])


def test_stream_resumes_at_the_response_index() -> None:
    stream = STREAMS["hosting.v1.Events.GetLiveEvents"]
    assert (stream.rpc_name, stream.repeated) == (
        "StreamLiveEvents",
        "hosting.v1.Events.GetLiveEvents",
    )
    reply = events_pb2.StreamLiveEventsResponse(watch={"index": "run.7"}).SerializeToString()
    assert stream.index_of(reply) == "run.7"
    following = events_pb2.StreamLiveEventsRequest.FromString(stream.next_request(b"", reply))
    assert following.watch_index == "run.7"
    again = events_pb2.GetLiveEventsRequest.FromString(stream.next_request(b"", reply))
    assert again.watch_index == "run.7", "both are alike on the wire"


def _stream_file(name: str, method: str, kind: str) -> FileDescriptor:
    """Returns a file with the watched operation GetThings and its stream, with this name and these
    message types.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tests/{name}.proto",
        package=f"tests.{name}",
        syntax="proto3",
        dependency=["google/api/annotations.proto", "hosting/v1/events.proto"],
    )
    file.message_type.add(name="Other")
    service = file.service.add(name="Odd")
    watched = ".hosting.v1.GetLiveEvents"
    get = service.method.add(
        name="GetThings", input_type=f"{watched}Request", output_type=f"{watched}Response"
    )
    operation: Any = options_pb2.operation
    get.options.Extensions[operation].slug = "things"
    get.options.Extensions[annotations_pb2.http].get = "/things"
    output = f".tests.{name}.Other" if kind == "other" else f"{watched}Response"
    service.method.add(
        name=method, input_type=f"{watched}Request", output_type=output, server_streaming=True
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindFileByName(file.name)


@pytest.mark.parametrize(
    ("name", "method", "kind", "problem"),
    [
        ("lonely", "StreamOthers", "same", "no GetOthers to poll"),
        ("unlike", "StreamThings", "other", "must match tests.unlike.Odd.GetThings, a long poll"),
    ],
)
def test_stream_without_a_watched_method_is_rejected_by_name(
    name: str, method: str, kind: str, problem: str
) -> None:
    file = _stream_file(name, method, kind)
    with pytest.raises(ValueError, match=rf"Odd\.{method}: {problem}"):
        read_streams([file], read_methods([file]))


def test_map_differs_from_a_list_of_messages() -> None:
    fields = descriptor_of(matchmaker_pb2.AttachLobbyRequest).fields_by_name
    listed = descriptor_of(matchmaker_pb2.ListLobbiesResponse).fields_by_name
    assert is_map(fields["ports"])
    assert map_key(fields["ports"]).name == "key"
    assert not is_map(listed["lobbies"])
    with pytest.raises(TypeError, match="is not a map"):
        map_key(fields["game_mode"])


def test_protos_pass_the_buf_lint_rules_offline() -> None:
    finished = subprocess.run(
        [sys.executable, ROOT / "proto" / "generate.py", "--lint"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
