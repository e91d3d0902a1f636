"""What the answers of a site tell caches (decisions 8.9). Pure.

A page is asked for again each time, for it names the files of its version; what is behind a password is kept by no
cache that is shared. A route may say all else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ASK_AGAIN: Final = "no-cache"

_CACHE_CONTROL: Final = "cache-control"
_OF_SOME_CACHES: Final = frozenset(
    {"edge-control", "expires", "surrogate-control", "x-accel-expires"}
)
# Between commas, which may be in a quoted text too; one that does not end goes to the end.
_WORD: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')


def with_caching(routed: Mapping[str, str], *, is_page: bool, is_private: bool) -> dict[str, str]:
    """The headers of routes (names in lower case) with what a file tells caches. `is_private`: it is shown to who has a
    password.
    """
    headers = dict(routed)
    if is_page or is_private:
        headers = {name: value for name, value in routed.items() if not _is_of_some_caches(name)}
    headers[_CACHE_CONTROL] = _cache_control(routed.get(_CACHE_CONTROL), is_page, is_private)
    return headers


def _is_of_some_caches(name: str) -> bool:
    """Whether some caches go by it in place of Cache-Control: a targeted field (RFC 9213), whose name ends so, or one
    that is older than these.
    """
    return name in _OF_SOME_CACHES or (name.endswith(_CACHE_CONTROL) and name != _CACHE_CONTROL)


def _cache_control(routed: str | None, is_page: bool, is_private: bool) -> str:
    """Files are asked for again each time, so that those of one version come together. A route may
    say otherwise, but not of a page.
    """
    words = {word.strip().lower() for word in _WORD.findall(routed or "")} - {""}
    if routed is None or not words or (is_page and words.isdisjoint({ASK_AGAIN, "no-store"})):
        return f"private, {ASK_AGAIN}" if is_private else ASK_AGAIN
    if is_private and words.isdisjoint({"private", "no-store"}):
        words = {word for word in words if word != "public" and not word.startswith("s-maxage")}
        return ", ".join(["private", *(sorted(words) or [ASK_AGAIN])])
    return routed
