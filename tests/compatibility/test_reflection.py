"""Server reflection of a running service shows the services and files of the stored release."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.compatibility.changelog import CHANGELOG, is_announced
from tests.compatibility.interface_list import stored_interface
from tests.support.supervised_service import SupervisedService

pytestmark = pytest.mark.full

OF_GRPC = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
# The options of a proto file are in no message, so the stored list does not have their file.
OF_OPTIONS = {"hosting/v1/options.proto"}


def stored(kind: str) -> set[str]:
    return {line.split()[1] for line in stored_interface() if line.startswith(f"{kind} ")}


def unannounced(kind: str, shown: set[str], expected: set[str]) -> list[str]:
    changelog = CHANGELOG.read_text()
    return [
        name for name in sorted(shown ^ expected) if not is_announced(f"{kind} {name}", changelog)
    ]


def files_of(database: ProtoReflectionDescriptorDatabase, services: set[str]) -> set[str]:
    unread = [database.FindFileContainingSymbol(service) for service in services]
    names: set[str] = set()
    while unread:
        file = unread.pop()
        if file.name not in names:
            names.add(file.name)
            unread += [database.FindFileByName(name) for name in file.dependency]
    return names


def test_reflection_shows_the_services_and_files_of_the_stored_release(tmp_path: Path) -> None:
    service = SupervisedService(tmp_path)
    try:
        service.start()
        with grpc.insecure_channel(service.addresses["grpc"]) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = set(database.get_services())
            files = files_of(database, services - OF_GRPC)
        service.stop()
    finally:
        service.close()
    expected = {rpc.rpartition(".")[0] for rpc in stored("rpc")}
    assert not unannounced("service", services, expected | OF_GRPC)
    shown = {name for name in files if name.startswith("hosting/")}
    expected = {name for name in stored("file") if name.startswith("hosting/")}
    assert not unannounced("file", shown, expected | OF_OPTIONS)
