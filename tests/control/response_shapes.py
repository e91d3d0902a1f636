"""Shape of a JSON response: its field names and the kind of each value."""

from __future__ import annotations

import re
from typing import Any, Final

from pyservice.ids import is_uuid

ID: Final = "an id"
TIME: Final = "a time"
TEXT: Final = "a text"
NUMBER: Final = "a number"
FLAG: Final = "true or false"
WATCH: Final = {"index": TEXT}

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def fields(ids: str = "", times: str = "", texts: str = "", numbers: str = "") -> dict[str, str]:
    """Returns the kinds of fields. Each parameter has the names of one kind, with spaces."""
    kinds = {ID: ids, TIME: times, TEXT: texts, NUMBER: numbers}
    return {name: kind for kind, names in kinds.items() for name in names.split()}


def shape(value: Any) -> Any:
    """Replaces each value by its kind, and each list by its distinct shapes."""
    match value:
        case dict():
            return {name: shape(one) for name, one in value.items()}
        case list():
            shapes: list[Any] = []
            for one in map(shape, value):
                if one not in shapes:
                    shapes.append(one)
            return shapes
        case bool():
            return FLAG
        case int():
            return NUMBER
        case str() if is_uuid(value):
            return ID
        case str() if _TIME.fullmatch(value):
            return TIME
        case str():
            return TEXT
    return value


EXTERNAL = {"profile": TEXT}
GROUP_SUMMARY = {
    **fields(ids="group_id owner_identity_id", texts="display_name bio publicity"),
    **fields(numbers="member_count"),
    "external": EXTERNAL,
    "is_current_identity_member": FLAG,
    "is_developer": FLAG,
}
VERSION_SUMMARY = fields(ids="version_id", times="create_ts", texts="display_name")
NAMESPACE_SUMMARY = {**VERSION_SUMMARY, **fields(ids="namespace_id", texts="name_id")}
