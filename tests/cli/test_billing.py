"""`pyservice billing record`: accepted times. The tests of the control plane check the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice.cli import admin_requests

WRONG_TIMES = (
    *("", "yesterday", "2030-01-31", "2030-01-31T12:00:00", "1969-01-01T00:00:00Z"),
    *("2030-W05-1T12:00:00Z", "20300131T120000Z", "2030-01-31T120000Z", "2030-01-31T12Z"),
    *("2030-01-31 12:00:00Z", "2030-01-31T12:00Z", "2030-01-31T12:00:00+01", "2030-031T12:00:00Z"),
    *("2030-01-31T12:00:00+0100", "2030-01-31T12:00:00+01:00:30", "2030-01-31T12:00:00,5Z"),
    *("2030-01-31T12:00:00.Z", "2030-01-31T12:00:00+24:00", "2030-01-31T12:00:00+22:75"),
    *("2030-02-30T12:00:00Z", "2030-01-31T24:00:00Z", "2030-01-31T12:00:00Z\n"),
    "\u0662030-01-31T12:00:00Z",
)


@pytest.mark.parametrize("time", WRONG_TIMES)
def test_non_rfc_3339_time_is_rejected(
    time: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        admin_requests.record_billing(tmp_path, "me", "nobody", "payment-failed", time, False) == 1
    )
    assert "such as 2030-01-31T12:00:00Z" in capsys.readouterr().err


def test_valid_time_is_sent_to_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    time = "2030-01-31T12:00:00Z"
    assert (
        admin_requests.record_billing(tmp_path, "me", "nobody", "payment-failed", time, False) == 1
    )
    assert "is stopped: start it first" in capsys.readouterr().err
