"""Content types by file extension, and the list of compressible types."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "application/octet-stream"

# The MIME tables of the system are not used.
_TEXTS: Final = {
    "css": "text/css",
    "csv": "text/csv",
    "htm": "text/html",
    "html": "text/html",
    "js": "text/javascript",
    "md": "text/markdown",
    "mjs": "text/javascript",
    "txt": "text/plain",
    "vtt": "text/vtt",
    "xml": "text/xml",
}
_MORE_TYPES: Final = {
    "avif": "image/avif",
    "bin": DEFAULT,
    "gif": "image/gif",
    "glb": "model/gltf-binary",
    "gltf": "model/gltf+json",
    "ico": "image/x-icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "m4a": "audio/mp4",
    "map": "application/json",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "otf": "font/otf",
    "pdf": "application/pdf",
    "png": "image/png",
    "svg": "image/svg+xml",
    "ttf": "font/ttf",
    "wasm": "application/wasm",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webmanifest": "application/manifest+json",
    "webp": "image/webp",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "zip": "application/zip",
}
_BY_EXTENSION: Final = {
    **{extension: f"{kind}; charset=utf-8" for extension, kind in _TEXTS.items()},
    **_MORE_TYPES,
}
_SMALLER: Final = frozenset(
    {
        *("application/javascript", "application/json", "application/manifest+json"),
        *("application/wasm", "application/xml", "font/otf", "font/ttf", "image/svg+xml"),
        *("image/x-icon", "model/gltf+json", "model/gltf-binary"),
    }
)


def content_type_of(path: str) -> str:
    return _BY_EXTENSION.get(path.rpartition(".")[2].lower(), DEFAULT)


def is_compressible(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _SMALLER or kind.endswith(("+json", "+xml"))


def is_html(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("text/html", "application/xhtml+xml")
