"""Names of changed settings that SIGHUP does not apply."""

from __future__ import annotations

from pyservice.settings import load
from pyservice.settings.model import unapplied_changes


def test_equal_settings_have_no_changes() -> None:
    assert unapplied_changes(load({}, None, {}), load({}, None, {})) == []


def test_changes_are_named_by_their_innermost_setting() -> None:
    flags = {"http": "127.0.0.1:1", "runtime": {"cpu_millicores": 5}, "captcha": {}}
    expected = ["http", "runtime.cpu_millicores"]
    assert unapplied_changes(load({}, None, {}), load(flags, None, {})) == expected


def test_added_and_changed_section_is_named() -> None:
    s3 = {"bucket": "a", "access_key_id": "b", "secret_access_key": "c"}
    first, second = (
        load({"s3": s3}, None, {}),
        load({"s3": {**s3, "secret_access_key": "d"}}, None, {}),
    )
    assert unapplied_changes(load({}, None, {}), first) == ["s3"]
    assert unapplied_changes(first, second) == ["s3.secret_access_key"]


def test_reloaded_settings_are_not_named() -> None:
    flags = {
        "rate_limits": {"client": {"burst": 3}, "anonymous": {"burst": 3}},
        "edge": {"limits": {"connections": 3}, "workers": 3},
    }
    assert unapplied_changes(load({}, None, {}), load(flags, None, {})) == ["edge.workers"]
