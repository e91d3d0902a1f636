"""Conversion between service errors and gRPC status details (docs/reference/errors.md#error-body)."""

from __future__ import annotations

from typing import Final

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import AioRpcError
from grpc_status import rpc_status

from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.errors import TABLE
from pyservice.schema.findings import shorten_problems

DOMAIN: Final = "hosting"
RAY_ID: Final = "x-ray-id"
DETAILS: Final = "grpc-status-details-bin"

# Details travel in a header, and clients accept 8 KiB of headers by default.
_MAX_FIELDS_BYTES: Final = 4096

Metadata = tuple[tuple[str, str | bytes], ...]


def status_code(error: ServiceError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc] if error.grpc else grpc.StatusCode.INTERNAL


def trailers(error: ServiceError, ray_id: str) -> Metadata:
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=error.metadata)
    ]
    if error.errors:
        details.append(_bad_request(error.errors))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.seconds = error.retry_after_s
        details.append(retry)
    status = status_pb2.Status(code=status_code(error).value[0], message=error.detail)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return ((RAY_ID, ray_id), (DETAILS, status.SerializeToString()))


def _bad_request(problems: tuple[FieldProblem, ...]) -> error_details_pb2.BadRequest:
    shown = shorten_problems(
        problems, _MAX_FIELDS_BYTES, lambda problem: _violation(problem).ByteSize() + 3
    )
    return error_details_pb2.BadRequest(field_violations=map(_violation, shown))


def _violation(problem: FieldProblem) -> error_details_pb2.BadRequest.FieldViolation:
    path, message = problem
    return error_details_pb2.BadRequest.FieldViolation(
        field=".".join(path[:-1]), description=message, reason=path[-1].upper().replace("-", "_")
    )


def read_error(failure: AioRpcError) -> ServiceError | None:
    status = rpc_status.from_call(failure)
    if status is None:
        return None
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    for detail in status.details:
        for message in (info, bad_request, retry):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    if info.reason not in TABLE:
        return None
    problems = [
        FieldProblem((*_names(item.field), item.reason.lower().replace("_", "-")), item.description)
        for item in bad_request.field_violations
    ]
    return ServiceError(
        info.reason,
        status.message,
        errors=problems,
        metadata=dict(info.metadata),
        retry_after_s=retry.retry_delay.seconds or None,
    )


def _names(field: str) -> tuple[str, ...]:
    return tuple(field.split(".")) if field else ()
