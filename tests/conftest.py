"""Fixtures for several folders: a message with every kind of proto field, and the event loop."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import Descriptor

from pyservice.pb.hosting.v1 import options_pb2
from tests.cluster.fixtures import cluster as cluster
from tests.cluster.fixtures import cluster_placement as cluster_placement
from tests.cluster.fixtures import service_image as service_image
from tests.support.data_plane_service import engine as engine
from tests.support.data_plane_service import make_service as make_service
from tests.support.data_plane_service import service as service
from tests.support.databases import databases as databases
from tests.support.tiers import pytest_addoption as pytest_addoption
from tests.support.tiers import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.support.tiers import pytest_configure as pytest_configure
from tests.support.tiers import pytest_runtest_makereport as pytest_runtest_makereport

if importlib.util.find_spec("sniffio") is None:
    # httpcore imports sniffio four times for each request. Each search for a missing module takes
    # as long as the request itself.
    sys.modules["sniffio"] = None  # type: ignore[assignment]

_Field = descriptor_pb2.FieldDescriptorProto

# name, type, repeated, presence
_FIELDS: tuple[tuple[str, int, bool, bool], ...] = (
    ("text", _Field.TYPE_STRING, False, False),
    ("optional_text", _Field.TYPE_STRING, False, True),
    ("flag", _Field.TYPE_BOOL, False, True),
    ("signed", _Field.TYPE_INT64, False, True),
    ("small", _Field.TYPE_INT32, False, True),
    ("large", _Field.TYPE_UINT64, False, True),
    ("count", _Field.TYPE_UINT32, False, True),
    ("ratio", _Field.TYPE_DOUBLE, False, True),
    ("digest", _Field.TYPE_BYTES, False, True),
    ("numbers", _Field.TYPE_UINT32, True, False),
    ("digests", _Field.TYPE_BYTES, True, False),
)


def _add_file() -> Descriptor:
    """Declares the message ``tests.shapes.Shape``, which the service does not use."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/shapes.proto",
        package="tests.shapes",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "hosting/v1/options.proto"],
    )
    kind = file.enum_type.add(name="ShapeKind")
    for number, name in enumerate(("UNSPECIFIED", "ROUND", "VERY_ROUND")):
        kind.value.add(name=f"SHAPE_KIND_{name}", number=number)
    shape = file.message_type.add(name="Shape")

    def add(name: str, type_: int, repeated: bool = False, **other: Any) -> Any:
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        return shape.field.add(
            name=name, number=len(shape.field) + 1, type=type_, label=label, **other
        )

    for name, type_, repeated, presence in _FIELDS:
        field = add(name, type_, repeated)
        if presence:
            field.proto3_optional = True
            field.oneof_index = len(shape.oneof_decl)
            shape.oneof_decl.add(name=f"_{name}")
    add("kind", _Field.TYPE_ENUM, type_name=".tests.shapes.ShapeKind")
    add("made_ts", _Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    add("inner", _Field.TYPE_MESSAGE, type_name=".tests.shapes.Shape.Inner")
    add("inners", _Field.TYPE_MESSAGE, True, type_name=".tests.shapes.Shape.Inner")
    unwrapped = add("listed", _Field.TYPE_MESSAGE, type_name=".tests.shapes.Shape.Listed")
    unwrapped.options.Extensions[options_pb2.form].unwrap = True
    add("by_name", _Field.TYPE_MESSAGE, True, type_name=".tests.shapes.Shape.ByNameEntry")
    add("by_inner", _Field.TYPE_MESSAGE, True, type_name=".tests.shapes.Shape.ByInnerEntry")
    nullable = add("nullable", _Field.TYPE_MESSAGE, type_name=".tests.shapes.Shape.Inner")
    nullable.options.Extensions[options_pb2.form].always_null = True
    omitted = add("quiet", _Field.TYPE_STRING, True)
    omitted.options.Extensions[options_pb2.form].omit_empty = True
    _add_nested(shape)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindMessageTypeByName("tests.shapes.Shape")


def _add_nested(shape: descriptor_pb2.DescriptorProto) -> None:
    inner = shape.nested_type.add(name="Inner")
    inner.field.add(name="size", number=1, type=_Field.TYPE_UINT32, label=_Field.LABEL_OPTIONAL)
    listed = shape.nested_type.add(name="Listed")
    listed.field.add(name="names", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_REPEATED)
    for name, value_type, type_name in (
        ("ByNameEntry", _Field.TYPE_UINT32, None),
        ("ByInnerEntry", _Field.TYPE_MESSAGE, ".tests.shapes.Shape.Inner"),
    ):
        entry = shape.nested_type.add(name=name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
        value = entry.field.add(
            name="value", number=2, type=value_type, label=_Field.LABEL_OPTIONAL
        )
        if type_name:
            value.type_name = type_name


@pytest.fixture(scope="session")
def shape() -> type[Any]:
    assert (
        timestamp_pb2.DESCRIPTOR is not None
    )  # The descriptor pool needs this file before the file that imports it.
    return message_factory.GetMessageClass(_add_file())


@pytest.fixture(scope="session", autouse=True)
def plain_tracebacks() -> None:
    """Logs tracebacks without the values of variables, which take seconds to print."""
    *others, _ = structlog.get_config()["processors"]
    plain = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain)
    structlog.configure(processors=[*others, renderer])


@pytest.fixture(scope="session", autouse=True)
def own_configuration_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hides the services of tests from the command line of the developer, and their profiles."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("configuration"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def silence_closed_loops(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("anyio") and "anyio_backend" in request.fixturenames:
        request.getfixturevalue("ignore_closed_loop_errors")


@pytest.fixture
async def ignore_closed_loop_errors(anyio_backend: Any) -> AsyncIterator[None]:
    """Silences callbacks of calls that belong to a closed event loop.

    grpcio has one queue for all loops of a process, so the end of a call may arrive in a later
    test. A service has one loop.
    """
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()

    def handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        is_late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not (is_late and _is_of_grpc(error)) and handler is not None:
            handler(loop, context)

    loop.set_exception_handler(handle_exception)
    yield
    loop.set_exception_handler(handler)


def _is_of_grpc(error: BaseException | None) -> bool:
    frame = error.__traceback__ if error is not None else None
    while frame is not None:
        if frame.tb_frame.f_code.co_name.endswith("_handle_events"):
            return True
        frame = frame.tb_next
    return False
