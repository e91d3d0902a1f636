"""`hosting.toml`: the version configuration of a game, and how to build and play it."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyservice_cli.failures import InputInvalid, Problem

FILE: Final = "hosting.toml"
WORK_FOLDER: Final = ".hosting"
"""Folder in the game's folder for files that a command can make again."""
_CONFIGURATION: Final = ("cdn", "engine", "kv", "matchmaker", "scripts")
_TABLES: Final[Mapping[str, Mapping[str, type | tuple[type, ...]]]] = {
    "": {"game": str, "display_name": str, "namespace": str, "group": str},
    "build": {
        "folder": str,
        "command": list,
        "exclude": list,
        "python_requirements": list,
        "env": dict,
        "workdir": str,
        "scratch_mb": int,
    },
    "play": {"bot": list},
}
_SECRET: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Build:
    """The game server: the files of a folder, and the command that starts it."""

    folder: Path
    description: Mapping[str, Any]
    """The content of `server.json`. Empty if the folder has the file."""
    exclude: tuple[str, ...]
    python_requirements: tuple[str, ...]


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

    @property
    def work_folder(self) -> Path:
        return self.folder / WORK_FOLDER


def read_project(folder: Path) -> Project:
    """Reads `hosting.toml` of a folder. Raises InputInvalid with all problems of the file."""
    path = folder / FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        where = folder.absolute()
        raise InputInvalid(
            f"There is no {FILE} in {where}.",
            "Run `pyservice init` in an empty folder, or name the game's folder with --folder.",
        ) from None
    except UnicodeDecodeError:
        raise InputInvalid(f"{path} is not in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputInvalid(f"{path}: {error}.") from None
    problems = list(_problems(content))
    config = {name: content[name] for name in _CONFIGURATION if name in content}
    config = _with_secrets(config, "", problems)
    if problems:
        raise InputInvalid(f"{path} has {_count(problems)}. Nothing was changed.", "", problems)
    return _project(folder, content, config)


def _project(folder: Path, content: Mapping[str, Any], config: dict[str, Any]) -> Project:
    build, play = content.get("build"), content.get("play", {})
    return Project(
        folder=folder,
        game=content["game"],
        display_name=content.get("display_name") or content["game"].replace("-", " ").capitalize(),
        namespace=content.get("namespace", "prod"),
        group=content.get("group"),
        config=config,
        build=None if build is None else _build(folder, build),
        bot=tuple(play.get("bot", ())),
    )


def _build(folder: Path, table: Mapping[str, Any]) -> Build:
    described = ("command", "env", "workdir", "scratch_mb")
    return Build(
        folder=folder / table.get("folder", "."),
        description={name: table[name] for name in described if name in table},
        exclude=tuple(table.get("exclude", ())),
        python_requirements=tuple(table.get("python_requirements", ())),
    )


def _problems(content: Mapping[str, Any]) -> Iterator[Problem]:
    known = [*_TABLES[""], *(name for name in _TABLES if name), *_CONFIGURATION]
    for name, value in content.items():
        if name not in known:
            yield unknown(name, name, known)
        elif name in _TABLES or name in _CONFIGURATION:
            if not isinstance(value, dict):
                yield Problem(name, f"must be a table: write [{name}]")
            elif name in _TABLES:
                yield from _table_problems(name, value)
        elif not isinstance(value, _TABLES[""][name]):
            yield Problem(name, "must be a text in quotation marks")
    game = content.get("game")
    if game is None:
        yield Problem("game", 'is missing: give the game a name, such as game = "my-game"')
    elif isinstance(game, str) and not _NAME.fullmatch(game):
        yield Problem("game", "must have only a-z, 0-9 and single hyphens between them")


def _table_problems(table: str, content: Mapping[str, Any]) -> Iterator[Problem]:
    known = _TABLES[table]
    for name, value in content.items():
        place = f"{table}.{name}"
        if name not in known:
            yield unknown(place, name, known)
        elif not isinstance(value, known[name]) or isinstance(value, bool):
            words = {str: "a text", list: "a list of texts", dict: "a table", int: "a whole number"}
            yield Problem(place, f"must be {words[known[name]]}")  # type: ignore[index]
        elif isinstance(value, list) and not all(isinstance(one, str) for one in value):
            yield Problem(place, "must be a list of texts, each in quotation marks")


def unknown(place: str, name: str, known: Iterable[str]) -> Problem:
    """Returns the problem of a name that is not known, with the most similar known name."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return Problem(place, f"is not known{f'; did you mean {similar[0]}?' if similar else ''}")


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


def _count(problems: list[Problem]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
