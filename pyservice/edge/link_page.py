"""Page `/link`, on which a person approves a device link with a `cloud_` token."""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from importlib import resources
from typing import Final

from pyservice.edge.static_document import StaticDocument

PATH: Final = b"/link"
_HTML: Final = b"text/html; charset=utf-8"


def link_page() -> StaticDocument:
    """Returns the page. A policy allows only its own script and style, and requests to this service."""
    body = (resources.files("pyservice.edge") / "link_page.html").read_bytes()
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src {_hash(body, 'script')}; "
        f"style-src {_hash(body, 'style')}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = [
        (b"content-security-policy", policy.encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    ]
    return StaticDocument(PATH, body, _HTML, headers)


def _hash(body: bytes, element: str) -> str:
    (text,) = re.findall(rf"<{element}>(.*?)</{element}>".encode(), body, re.DOTALL)
    return f"'sha256-{base64.b64encode(sha256(text).digest()).decode()}'"
