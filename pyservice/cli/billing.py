"""`pyservice billing record`: writes down when a group paid, through the running control plane (decisions 8.6)."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Final

from pyservice.cli.asking import Failed, ask, control_socket, tell_failed
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb

EVENTS: Final = {
    "payment-failed": pb.BILLING_EVENT_PAYMENT_FAILED,
    "payment-method-attached": pb.BILLING_EVENT_PAYMENT_METHOD_ATTACHED,
    "payment-method-valid": pb.BILLING_EVENT_PAYMENT_METHOD_VALID,
    "payment-succeeded": pb.BILLING_EVENT_PAYMENT_SUCCEEDED,
}

# What `fromisoformat` takes is much more: weeks, times without dashes and colons.
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)


def record(data_dir: Path, group: str, event: str, time: str, is_json: bool) -> int:
    """Exit status: 0 when it is stored, and whoever watches the group's billing knows."""
    try:
        request = pb.RecordBillingRequest(
            group_id=group, event=EVENTS[event], ts_ms=_milliseconds(event, time)
        )
        method = "hosting.internal.v1.ControlAdmin.RecordBilling"
        ask(control_socket(data_dir), data_dir, method, request)
    except Failed as failed:
        return tell_failed("billing", failed)
    if is_json:
        print("{}")
    return 0


def _milliseconds(event: str, time: str) -> int:
    """Of an RFC 3339 time with its offset. Raises Failed."""
    try:
        if _RFC3339.fullmatch(time) is None:
            raise ValueError
        moment = datetime.fromisoformat(time.upper())
        told = round(moment.timestamp() * 1000)
        if told < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise Failed(
            f"--{event} {time}: give a time such as 2030-01-31T12:00:00Z, not before 1970"
        ) from None
    return told
