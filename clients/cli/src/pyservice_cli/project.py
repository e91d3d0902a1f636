"""`hosting.toml`: the version configuration of a game, and how to build and play it."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pyservice_cli.failures import InputInvalid, Problem

FILE: Final = "hosting.toml"
WORK_FOLDER: Final = ".hosting"
"""Folder in the game's folder for files that a command can make again."""
SCHEMA: Final = "hosting.schema.json"
GAME_NAME_RULE: Final = (
    "must have only a-z, 0-9 and single hyphens between them, at most 40 characters"
)
_OWN: Final = ("game", "display_name", "namespace", "group", "build", "play")
"""Members that are not part of the version configuration."""
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "object": (dict, "a table"),
    "array": (list, "a list"),
    "string": (str, "a text in quotation marks"),
    "integer": (int, "a whole number"),
    "number": (float, "a number"),
    "boolean": (bool, "true or false"),
}
_SECRET: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Build:
    """The game server: the files of a folder, and the command that starts it."""

    folder: Path
    description: Mapping[str, Any]
    """The content of `server.json`. Empty if the folder has the file."""
    exclude: tuple[str, ...]
    python_requirements: tuple[str, ...]
    build_command: str | None
    """Shell command that makes the files."""


@dataclass(frozen=True, slots=True)
class Project:
    folder: Path
    game: str
    display_name: str
    namespace: str
    group: str | None
    config: dict[str, Any]
    """The version configuration, with secrets."""
    build: Build | None
    bot: tuple[str, ...]
    secrets: frozenset[str]
    """Values of the developer's environment that the configuration uses. Never printed."""

    @property
    def game_module(self) -> str | None:
        """Name of the Unreal module with the game code."""
        return _game_module(self.config)

    @property
    def work_folder(self) -> Path:
        return self.folder / WORK_FOLDER


def read_project(folder: Path) -> Project:
    """Reads `hosting.toml` of a folder. Raises InputInvalid with all problems of the file."""
    project, problems = check_project(folder)
    if project is None or problems:
        raise settings_invalid(problems)
    return project


def check_project(folder: Path) -> tuple[Project | None, list[Problem]]:
    """Returns the project without the members that have problems, and the problems.

    The project is None if the problems leave no game. Raises InputInvalid if the file cannot be read.
    """
    content = _parsed(folder / FILE)
    check = _Check()
    check.content(content)
    problems = check.problems
    config = {name: value for name, value in content.items() if name not in _OWN}
    config = _with_secrets(config, "", problems)
    problems += _misplaced_secrets(content.get("build"))
    for problem in problems:
        for tree in (content, config):
            _remove(tree, problem.place.split("."))
    return _project(folder, content, config) if "game" in content else None, problems


def _remove(tree: Any, path: Sequence[str]) -> None:
    """Removes a member of nested tables. Of a list, removes all of it, so that no index changes."""
    name, *rest = path
    if not isinstance(tree, dict) or name not in tree:
        return
    if rest and isinstance(tree[name], dict):
        _remove(tree[name], rest)
    else:
        del tree[name]


def settings_invalid(problems: Sequence[Problem]) -> InputInvalid:
    """Returns the failure for problems of `hosting.toml`."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return InputInvalid(
        f"{FILE} has {count}. Nothing was changed.",
        f"Correct {FILE}, then run the same command again.",
        problems,
    )


def _parsed(path: Path) -> dict[str, Any]:
    """Returns the content of the file. Raises InputInvalid with the line of a syntax error."""
    try:
        # The text form turns CRLF, which editors of Windows write, into LF.
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputInvalid(
            f"There is no {FILE} in {path.parent.absolute()}.",
            "Run `pyservice init` in an empty folder, or name the game's folder with --folder.",
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputInvalid(
            f"{path} is not in UTF-8 (at line {line}).", "Save the file in UTF-8."
        ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The parser gives no number if the value that it reads has no end.
        last = len(text.rstrip().splitlines())
        sentence = str(error).replace("at end of document", f"at line {last}, the last one")
        remedy = "Correct this line, then run the command again."
        if sentence != str(error):
            remedy = "Complete the last value: close its bracket or its quotation mark."
        raise InputInvalid(f"{path}: {sentence}.", remedy) from None


def _project(folder: Path, content: Mapping[str, Any], config: dict[str, Any]) -> Project:
    build, play = content.get("build"), content.get("play", {})
    return Project(
        folder=folder,
        game=content["game"],
        display_name=content.get("display_name") or content["game"].replace("-", " ").capitalize(),
        namespace=content.get("namespace", "prod"),
        group=content.get("group"),
        config=config,
        build=None if build is None else _build(folder, build, _game_module(config)),
        bot=tuple(play.get("bot", ())),
        secrets=_secret_values(content),
    )


def _build(folder: Path, table: Mapping[str, Any], game_module: str | None) -> Build:
    described = ("command", "env", "workdir", "scratch_mb")
    files = folder / table.get("folder", ".")
    description = {name: table[name] for name in described if name in table}
    if game_module and "command" not in table and not (files / "server.json").exists():
        # Script that Unreal writes beside the packaged game.
        description["command"] = [f"./{game_module}Server.sh", "-log", "-port=$(PORT)"]
    return Build(
        folder=files,
        description=description,
        exclude=tuple(table.get("exclude", ())),
        python_requirements=tuple(table.get("python_requirements", ())),
        build_command=table.get("build_command"),
    )


def _game_module(config: Mapping[str, Any]) -> str | None:
    module: str | None = config.get("engine", {}).get("unreal", {}).get("game_module")
    return module


def make_work_folder(folder: Path) -> None:
    """Makes the folder of files that a command can make again, with the schema for editors."""
    work = folder / WORK_FOLDER
    work.mkdir(exist_ok=True)
    for name, text in ((".gitignore", "*\n"), (SCHEMA, schema_text())):
        if not (work / name).exists() or (work / name).read_text(encoding="utf-8") != text:
            (work / name).write_text(text, encoding="utf-8")


def schema_text() -> str:
    """Returns the JSON Schema of `hosting.toml`."""
    return (resources.files("pyservice_cli") / SCHEMA).read_text(encoding="utf-8")


def is_game_name(name: str) -> bool:
    """Returns whether the schema accepts a text as the name of a game."""
    rule = json.loads(schema_text())["properties"]["game"]
    return len(name) <= rule["maxLength"] and bool(re.fullmatch(rule["pattern"], name))


class _Check:
    """Comparison of names and types with the schema. The service checks all other rules."""

    def __init__(self) -> None:
        self._schema: Mapping[str, Any] = json.loads(schema_text())
        self.problems: list[Problem] = []

    def content(self, content: Mapping[str, Any]) -> None:
        self._value(content, self._schema, "")
        game = content.get("game")
        if game is None:
            self._add("game", 'is missing: give the game a name, such as game = "my-game"')
        elif isinstance(game, str) and not is_game_name(game):
            self._add("game", GAME_NAME_RULE)

    def _value(self, value: Any, schema: Mapping[str, Any], place: str) -> None:
        while "$ref" in schema:
            schema = self._schema["$defs"][schema["$ref"].rpartition("/")[2]]
        kind = schema.get("type")
        if kind is not None and not _has_type(value, kind):
            self._add(place, f"must be {_TYPES[kind][1]}")
        elif isinstance(value, dict):
            self._table(value, schema, place)
        elif isinstance(value, list):
            for index, one in enumerate(value):
                self._value(one, schema.get("items", {}), f"{place}.{index}")

    def _table(self, table: Mapping[str, Any], schema: Mapping[str, Any], place: str) -> None:
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, value in table.items():
            where = f"{place}.{name}" if place else name
            if name in known:
                self._value(value, known[name], where)
            elif others is False:
                similar = difflib.get_close_matches(name, known, n=1)
                self._add(
                    where, f"is not known{f'; did you mean {similar[0]}?' if similar else ''}"
                )
            elif isinstance(others, dict):
                self._value(value, others, where)

    def _add(self, place: str, sentence: str) -> None:
        self.problems.append(Problem(place, sentence))


def _has_type(value: Any, name: str) -> bool:
    wanted = _TYPES[name][0]
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _with_secrets(value: Any, place: str, problems: list[Problem]) -> Any:
    """Replaces `${env:NAME}` by the variable of the developer's environment."""
    if isinstance(value, dict):
        return {
            name: _with_secrets(one, f"{place}.{name}" if place else name, problems)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_with_secrets(one, f"{place}.{index}", problems) for index, one in enumerate(value)]
    if not isinstance(value, str):
        return value
    missing = [name for name in _SECRET.findall(value) if name not in os.environ]
    problems += [Problem(place, f"the environment variable {name} is not set") for name in missing]
    return _SECRET.sub(lambda found: os.environ.get(found[1], ""), value)


def _misplaced_secrets(build: Any) -> Iterator[Problem]:
    """Yields the `${env:NAME}` in the content of `server.json`, which nothing replaces."""
    if isinstance(build, dict):
        for name in ("command", "env"):
            for place, text in _texts(build.get(name), f"build.{name}"):
                if found := _SECRET.search(text):
                    yield Problem(
                        place,
                        f"{found[0]} acts only in the version configuration; use docker.env there",
                    )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yields each text in nested tables and lists, with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from _texts(one, f"{place}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _texts(one, f"{place}.{index}")


def _secret_values(content: Mapping[str, Any]) -> frozenset[str]:
    names = _SECRET.findall(json.dumps(content, default=str))
    return frozenset(os.environ[name] for name in names if name in os.environ)
