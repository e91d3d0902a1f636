from __future__ import annotations

import time

import pytest

from pyservice.cdn.site_routes import Glob


@pytest.mark.parametrize(
    ("glob", "matching", "others"),
    [
        ("index.html", ["index.html", "/index.html"], ["index_html", "a/index.html", "index.htm"]),
        ("/index.html", ["index.html"], ["x"]),
        ("*", ["a", "a.js", ""], ["a/b", "/a/b"]),
        ("*.js", [".js", "a.js"], ["a/b.js", "a.jsx"]),
        ("**", ["", "a", "a/b/c"], []),
        ("**/*.js", ["a.js", "x/a.js", "x/y/a.js"], ["a.css", "x.js/a"]),
        ("a/**", ["a/", "a/b", "a/b/c"], ["a", "b/a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["az", "a/bz", "a/z/b"]),
        ("a**z", ["az", "a/b/z", "a/bz"], ["a", "ab"]),
        ("?.js", ["a.js", "é.js"], [".js", "ab.js", "/.js"]),
        ("[ab]", ["a", "b"], ["c", "ab", ""]),
        ("[a-c].js", ["b.js"], ["d.js", "-.js"]),
        ("[!a-c].js", ["d.js"], ["b.js", "/.js"]),
        ("[]]", ["]"], ["[", "x"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("*.{js,css}", ["a.js", "a.css"], ["a.jscss", "a.", "a.j"]),
        ("{a,b*,}c", ["ac", "bc", "bxyzc", "c"], ["dc", "abc"]),
        ("{*.js,img/**}", ["a.js", "img/x/y"], ["x/a.js", "img"]),
        ("{**/a,b}", ["a", "x/y/a", "b"], ["xa", "x/b"]),
        ("{a,b}{c,d}", ["ac", "bd", "ad"], ["a", "cd"]),
        ("a,b", ["a,b"], ["a", "b"]),
        ("{[,],x}", [",", "x"], ["["]),
        ("a.b+c$(^)|d", ["a.b+c$(^)|d"], ["aab+c"]),
        ("***/x", ["x", "a/b/x"], []),
    ],
)
def test_glob_matches_whole_paths(glob: str, matching: list[str], others: list[str]) -> None:
    compiled = Glob(glob)
    assert [path for path in matching if not compiled.matches(path)] == []
    assert [path for path in others if compiled.matches(path)] == []


@pytest.mark.parametrize("glob", ["[", "[]", "[!", "{a", "a}", "{a,{b,c}}"])
def test_invalid_glob_is_rejected(glob: str) -> None:
    with pytest.raises(ValueError, match="a "):
        Glob(glob)


def _seconds(glob: str, length: int) -> float:
    """Returns the match time for a path without repetition, so that caching does not help."""
    path = "".join("a" * (1 + number % 7) + "b" * (number % 3) for number in range(length // 4))
    compiled = Glob(glob)
    began_s = time.process_time()
    assert not compiled.matches(path)
    return time.process_time() - began_s


@pytest.mark.parametrize(
    "glob", ["*a" * 200 + "/", "**a" * 200 + "/", "{a,aa}" * 100 + "/", "{*,a*}" * 100 + "/"]
)
def test_hostile_globs_take_linear_time(glob: str) -> None:
    short = min(_seconds(glob, 500) for _ in range(3))
    long = min(_seconds(glob, 4_000) for _ in range(3))
    # The path is 8 times as long; a backtracking matcher would need at least 64 times as long.
    assert long < 24 * max(short, 0.0005)
