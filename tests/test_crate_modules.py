"""No modules of a crate import each other in a circle.

An import is a path of an item of another module, in a `use` or elsewhere. The line `mod child;` is none.
A parent and a child that use each other are a circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.support.tracked_files import relative, tracked

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

_COMMENT_OR_TEXT: Final = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#+)".*?"\1|b?"(?:\\.|[^"\\])*"', re.S)
_TEST_MODULE: Final = re.compile(r"#\[cfg\(test\)\]\s*(?:pub )?mod \w+\s*(?:;|\{.*\n\})", re.S)
_INNER_MODULE: Final = re.compile(r"^mod \w+ \{.*?^\}", re.M | re.S)
_CHILD: Final = re.compile(r"^(?:pub(?:\(\w+\))? )?mod (\w+);", re.M)
_USE: Final = re.compile(r"\buse ([^;]+);")
_PATH: Final = re.compile(r"(?<![\w:])\w+(?:::\w+)+")


def _crates() -> list[Path]:
    return sorted({path.parent / "src" for path in tracked("native/*/Cargo.toml")})


def _imports(crate: Path) -> Graph:
    """Returns the modules that each module of a crate uses."""
    sources = {_module(crate, path): _code(path) for path in _sources(crate)}
    return {module: set(_used(module, code, sources)) for module, code in sources.items()}


def _sources(crate: Path) -> Iterator[Path]:
    for path in crate.rglob("*.rs"):
        if path.name != "tests.rs" and "tests" not in path.relative_to(crate).parts:
            yield path


def _module(crate: Path, path: Path) -> Module:
    """Returns the path of a module, without the word `crate`. The program of a crate with a library is a root too."""
    parts = path.relative_to(crate).with_suffix("").parts
    if parts == ("main",) and (crate / "lib.rs").exists():
        return ("main",)
    return () if parts in (("lib",), ("main",)) else parts[: -1 if parts[-1] == "mod" else None]


def _code(path: Path) -> str:
    code = _TEST_MODULE.sub("", _COMMENT_OR_TEXT.sub("", path.read_text()))
    # In a module inside of the file, `super` is the module of the file.
    return _INNER_MODULE.sub(lambda inner: inner[0].replace("super::", "self::"), code)


def _used(module: Module, code: str, modules: dict[Module, str]) -> Iterator[Module]:
    children = set(_CHILD.findall(code))
    uses = [tuple(path.split("::")) for text in _USE.findall(code) for path in _leaves(text)]
    paths = [tuple(path.split("::")) for path in _PATH.findall(_USE.sub("", code))]
    # A path may begin with the name of an imported module.
    names = {use[-1]: use for use in uses}
    for path in [*uses, *(names.get(path[0], path[:1]) + path[1:] for path in paths)]:
        used = _resolved(module, path, children)
        while used is not None and used not in modules:
            used = used[:-1]
        if used is not None and used != module:
            yield used


def _leaves(tree: str) -> Iterator[str]:
    """Returns the paths of a `use`, without `as` and `*`."""
    tree = re.sub(r"\s+as\s+\w+|\s+|::\*", " ", tree).replace(" ", "")
    begin, brace, rest = tree.partition("{")
    if not brace:
        yield tree.removesuffix("::self")
        return
    depth, item = 0, ""
    for letter in rest.removesuffix("}") + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if item:
                yield from _leaves((begin + item).removesuffix("::self"))
            item = ""
        else:
            item += letter


def _resolved(module: Module, path: Module, children: set[str]) -> Module | None:
    match path:
        case ("crate", *rest):
            return tuple(rest)
        case ("super", *rest):
            return _resolved(module[:-1], ("self", *rest), set())
        case ("self", "super", *rest):
            return _resolved(module[:-1], ("self", *rest), set())
        case ("self", *rest):
            return module + tuple(rest)
        case (first, *_) if first in children:
            return module + path
    return None


@pytest.mark.parametrize("crate", _crates(), ids=lambda crate: crate.parent.name)
def test_modules_of_a_crate_have_no_circle(crate: Path) -> None:
    try:
        TopologicalSorter(_imports(crate)).prepare()
    except CycleError as error:
        circle = " <- ".join("::".join(("crate", *module)) for module in error.args[1])
        pytest.fail(f"{relative(crate)}: {circle}")


def test_imports_are_found_in_every_form(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;\nmod b;\npub use a::{Inner, nested::{self, Deep as Other}};",
        "a.rs": (
            'pub mod nested;\n// crate::b\nfn f() { nested::g("crate::b"); }\n'
            "#[cfg(test)]\nmod tests {\n  use crate::b;\n}"
        ),
        "a/nested.rs": "use super::super::b::B;",
        "b.rs": "use std::fmt;\nfn f() -> crate::a::nested::Deep { fmt::g() }",
    }
    for name, code in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    a, nested, b = ("a",), ("a", "nested"), ("b",)
    assert _imports(tmp_path) == {(): {a, nested}, a: {nested}, nested: {b}, b: {nested}}
