"""Limit of open files: raised at start, monitored, and reported before it is reached."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pyservice.observability import health
from pyservice.observability.health import descriptor_reserve

_LOW = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 96))
from pyservice.observability import health
print(health.descriptor_limit(), health.raise_descriptor_limit(), health.descriptor_limit())
watch = health.DescriptorMonitor()
print(watch.is_low, watch.used < 64)
held = []
while not watch.is_low:
    held.append(os.open(os.devnull, os.O_RDONLY))
    watch.measure()
print(watch.used - (96 - 24))
while True:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
watch.measure()
print(watch.used)
os.close(held.pop(0))
watch.measure()
print(watch.used)
for descriptor in held:
    os.close(descriptor)
watch.measure()
print(watch.is_low)
"""


def test_process_raises_its_limit_and_detects_low_reserve() -> None:
    output = subprocess.run(
        [sys.executable, "-c", _LOW], capture_output=True, text=True, check=True, env=os.environ
    ).stdout.split("\n")
    assert output[0] == "64 96 96"
    assert output[1] == "False True"
    assert output[2:6] == ["1", "96", "95", "False"]


def test_service_reserve_is_a_share_of_a_small_limit() -> None:
    assert [descriptor_reserve(most) for most in (256, 1024, 20_000)] == [64, 256, 2560]


def test_client_connections_use_everything_except_the_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "descriptor_limit", lambda: 1024)
    assert [health.connections_max(), health.connections_max(2)] == [768, 384]
