"""Conversion between service errors and gRPC status details (docs/reference/errors.md#error-body)."""

from __future__ import annotations

from typing import Final

import grpc
from google.rpc import error_details_pb2
from grpc.aio import AioRpcError
from grpc_status import rpc_status

from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.errors import TABLE
from pyservice.transport.native import grpc_status

RAY_ID: Final = "x-ray-id"
DETAILS: Final = "grpc-status-details-bin"

Metadata = tuple[tuple[str, str | bytes], ...]


def status_code(error: ServiceError) -> grpc.StatusCode:
    return grpc.StatusCode[error.grpc] if error.grpc else grpc.StatusCode.INTERNAL


def trailers(error: ServiceError, ray_id: str) -> Metadata:
    return ((RAY_ID, ray_id), (DETAILS, grpc_status(error)))


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
