#!/usr/bin/env python3
"""Check of the writing rules in CONTRIBUTING.md.

Reads comments, docstrings, Markdown, HTML and the texts of `proto/errors.toml`. Prints every place that breaks a rule:

- a banned word (BANNED), also in the name of a function, and in a string literal outside of the tests;
- an opening word that hides the subject (OPENING);
- a sentence of more than LONGEST_SENTENCE words; in a table cell, semicolons separate sentences;
- a first sentence of a docstring of more than LONGEST_SUMMARY words;
- a reference to a document that is not in this repository.

`check_prose.py [PATH ...]` checks these files, or every tracked file.
`check_prose.py --commit FILE` checks a commit message.
`check_prose.py --commits RANGE` checks the commits of a range.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

# A flag (`--nursery`) and a file name (`.nursery`) stay, because other versions of the service know them.
BANNED = re.compile(
    r"(?<![-.\w])(who|whose|whom|whoever|nobody|somebody|anybody|everybody|told|tells|mend(s|ed)?|thereof|wherein"
    r"|crowd(s|ed)?|loans?|strangers?|nursery|barren|deaf|hurry|households?)(?!\w)",
    re.I,
)
FUNCTION = re.compile(r"^[\w ()]*\b(?:def|fn) (\w+)")
OPENING = re.compile(r"^(what|those|the ones)\b\s+\w", re.I)
OUTSIDE = re.compile(r"\bdecisions? \d+(\.\d+)?|\bdesign: |\bdesign section \d")
CODE_SPAN = re.compile(r"`[^`]*`|\{[^{}]*\}")
# A blank line and an item of a list also end a sentence.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\s+(?=- )")
WORD = re.compile(r"\S*[A-Za-z]\S*")
TAG = re.compile(r"<!--|-->|</?\w[^>]*>")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
SKIPPED = re.compile(r"(^|/)pb/|\.lock$|^LICENSE$")
LONGEST_SENTENCE = 25
LONGEST_SUMMARY = 20
LONGEST_SUBJECT = 72

COMMENT_MARKS = {
    ".rs": "//",
    ".proto": "//",
    ".js": "//",
    ".c": "//",
    ".toml": "#",
    ".yaml": "#",
    ".yml": "#",
    ".in": "#",
    ".css": r"/\*",
    # Scripts have no suffix. A Makefile has comments behind targets.
    "": r"(?:[\w$()/-]+:.*#)?#",
}

Text = tuple[int, str]


def python_texts(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#! ")


def paragraphs(lines: Iterable[tuple[int, str | None]]) -> Iterator[Text]:
    """Joins consecutive lines. None ends a paragraph."""
    first, parts = 0, list[str]()
    for number, line in [*lines, (0, None)]:
        if line:
            first = first or number
            parts.append(line)
        elif parts:
            yield first, " ".join(parts)
            first, parts = 0, []


def comment_texts(source: str, mark: str) -> Iterator[Text]:
    comment = re.compile(rf"\s*{mark}[/!]*\s?(.*)")
    lines = enumerate(source.splitlines(), 1)
    found = ((number, comment.match(line)) for number, line in lines if line[:2] != "#!")
    yield from paragraphs((number, match[1] if match else None) for number, match in found)


def markdown_texts(source: str) -> Iterator[Text]:
    """Returns paragraphs and table cells outside of code blocks."""
    prose: list[tuple[int, str | None]] = []
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            prose.append((number, None))
        elif is_code or line.startswith("    "):
            prose.append((number, None))
        elif line.startswith("|"):
            for cell in line.strip("|").replace("; ", "|").split("|"):
                prose += [(number, None), (number, cell.strip()), (number, None)]
        elif re.match(r"\s*([-*]|\d+\.) ", line):
            prose += [(number, None), (number, line.strip(" -*"))]
        else:
            prose.append((number, line.strip()))
    yield from paragraphs(prose)


def html_texts(source: str) -> Iterator[Text]:
    is_code = False
    for number, line in enumerate(source.splitlines(), 1):
        is_code = is_code or line.lstrip().startswith(("<script", "<style"))
        if not is_code:
            yield from ((number, text) for text in TAG.split(line) if text.strip())
        is_code = is_code and not line.rstrip().endswith(("</script>", "</style>"))


def long_summaries(path: Path) -> Iterator[Text]:
    """Yields the docstrings with a first sentence of more than LONGEST_SUMMARY words."""
    if path.suffix not in (".py", ".pyi"):
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            summary = SENTENCE_END.split(CODE_SPAN.sub("x", text))[0]
            if len(summary.split()) > LONGEST_SUMMARY:
                yield getattr(node, "lineno", 1), f"the first sentence is long: {summary[:60]!r}"


def literals(path: Path) -> Iterator[Text]:
    """Yields the string literals with several words: errors, log events and help texts."""
    is_read = path.suffix in (".py", ".rs", ".proto") and "tests" not in path.parts
    source = path.read_text() if is_read else ""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Constant(value=str(text)) if " " in text:
                    yield node.lineno, text
    else:
        yield from quoted_texts(source)


def quoted_texts(source: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), 1):
        yield from ((number, text) for text in LITERAL.findall(line) if " " in text)


def function_names(path: Path) -> Iterator[Text]:
    """Yields the name of each function as words."""
    if path.suffix not in (".py", ".pyi", ".rs"):
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield from ((number, name.replace("_", " ")) for name in FUNCTION.findall(line))


def texts(path: Path) -> Iterator[Text]:
    if path.suffix in (".py", ".pyi"):
        yield from python_texts(path.read_text())
    elif path.suffix == ".md":
        yield from markdown_texts(path.read_text())
    elif path.suffix == ".html":
        yield from html_texts(path.read_text())
    elif mark := COMMENT_MARKS.get(path.suffix):
        yield from comment_texts(path.read_text(), mark)
    if path.name == "errors.toml":
        yield from quoted_texts(path.read_text())


def banned_words(text: str) -> Iterator[str]:
    for found in BANNED.finditer(CODE_SPAN.sub("x", text)):
        yield f"use a standard term instead of {found[0]!r}"


def problems(text: str) -> Iterator[str]:
    plain = CODE_SPAN.sub("x", text)
    yield from banned_words(text)
    if found := OUTSIDE.search(text):
        yield f"{found[0]!r} refers to a document outside of the repository"
    for sentence in SENTENCE_END.split(plain):
        if OPENING.match(sentence) and sentence.endswith((".", "!")):
            yield f"the sentence hides its subject: {sentence[:60]!r}"
        if (count := len(WORD.findall(sentence))) > LONGEST_SENTENCE:
            yield f"a sentence of {count} words: {sentence[:60]!r}"


def subject_problems(subject: str) -> Iterator[str]:
    if len(subject) > LONGEST_SUBJECT:
        yield f"{len(subject)} characters; the limit is {LONGEST_SUBJECT}"
    if ";" in subject:
        yield "several topics"
    if not re.match(r"[\w/.-]+(, [\w/.-]+)*: [a-z]", subject):
        yield "the form is `area: imperative sentence`"
    if found := BANNED.search(subject):
        yield f"use a standard term instead of {found[0]!r}"


def subjects(commits: str) -> list[str]:
    command = ["git", "log", "--no-merges", "--format=%s", commits]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    return listed.stdout.splitlines()


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the writing rules of CONTRIBUTING.md.")
    parser.add_argument("paths", nargs="*", help="files to check; default: every tracked file")
    parser.add_argument("--commit", metavar="FILE", help="check a commit message instead")
    parser.add_argument("--commits", metavar="RANGE", help="check the commits of a range instead")
    options = parser.parse_args()
    if options.commit or options.commits:
        checked = (
            Path(options.commit).read_text(encoding="utf-8").splitlines()[:1]
            if options.commit
            else subjects(options.commits)
        )
        found = [
            f"commit subject {subject!r}: {problem}"
            for subject in checked
            for problem in subject_problems(subject)
        ]
    else:
        names = options.paths or tracked_files()
        paths = [Path(name) for name in names if not SKIPPED.search(name) and Path(name).is_file()]
        found = [
            f"{path}:{line}: {problem}"
            for path in paths
            for line, text in texts(path)
            for problem in problems(text)
        ]
        found += [
            f"{path}:{line}: {problem}" for path in paths for line, problem in long_summaries(path)
        ]
        found += [
            f"{path}:{line}: {problem}"
            for path in paths
            for line, text in (*literals(path), *function_names(path))
            for problem in banned_words(text)
        ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
