"""`pyservice deploy`: uploads what changed, creates a version, tries it, and sets it in a namespace.

Each step finds the result of an earlier run by content, so a repeated deployment changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyservice_cli.api import Answer
from pyservice_cli.container_images import ImageTool, image_runtimes, ready_image
from pyservice_cli.failures import (
    CommandFailed,
    InputInvalid,
    Interrupted,
    Problem,
    Refused,
    writing_to,
)
from pyservice_cli.game_files import build_entries, file_problems, make_files, site_files
from pyservice_cli.games import Game
from pyservice_cli.packing import DESCRIPTION, digest_of, pack
from pyservice_cli.project import Build, make_work_folder, settings_invalid
from pyservice_cli.python_packages import PREFIX, installed_packages, packed_packages
from pyservice_cli.switching import PAGE_SETTINGS, switch_version
from pyservice_cli.terminal import Terminal
from pyservice_cli.trials import modes_on_trial, try_version
from pyservice_cli.uploading import find_stored, prepare, send

_NEW: Final = "(new)"
"""Id of a site or build that a dry run would upload."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the command. A dry run prints the steps that change something, and skips them."""

    terminal: Terminal
    game: Game
    is_dry: bool
    skipped: list[str] = field(default_factory=list)

    def skips(self, step: str) -> bool:
        if self.is_dry:
            self.skipped.append(step)
        return self.is_dry


def deploy(
    terminal: Terminal,
    game: Game,
    *,
    has_trial: bool,
    is_dry_run: bool,
    mistakes: Sequence[Problem] = (),
) -> None:
    """Deploys a game. Changes the namespace only if no other deployment did so meanwhile.

    Raises InputInvalid with the mistakes and with all others, before the service has a new game.
    """
    _refuse_mistakes(game, mistakes, is_dry_run=is_dry_run)
    run = _Run(terminal, game, is_dry_run)
    with writing_to(game.project.work_folder):
        make_work_folder(game.project.folder)
    config = copy.deepcopy(game.project.config)
    is_new = _is_missing(game)
    if is_new:
        game.check_first_namespace()
    else:
        running = game.describe_namespace()
        _check_at_service(game)
    make_files(terminal, game.project)
    if is_new and run.skips(f"create the game {game.project.game}"):
        run.skipped.append("check the configuration at the service, which needs the game")
        run.skipped.append("upload its files, and create and set its first version")
        _finish_dry_run(run, {"game": game.project.game, "namespace": game.namespace})
        return
    if is_new:
        running = _create_checked_game(terminal, game)
    site_id = _ensure_site(run)
    if site_id is not None:
        config["cdn"]["site_id"] = site_id
    _set_images(run, config)
    if game.project.build is not None:
        _set_build(config, _ensure_build(run, game.project.build))
    _finish(run, running, config, has_trial=has_trial)


def _refuse_mistakes(game: Game, mistakes: Sequence[Problem], *, is_dry_run: bool) -> None:
    """Raises InputInvalid with the mistakes, and with all others that this machine can find."""
    # A wrong member was removed, so it is not missing.
    wrong = [f"{mistake.place}." for mistake in mistakes]
    found = [
        one
        for one in file_problems(game.project, are_made=False)
        if not any(place.startswith(f"{one.place}.") for place in wrong)
    ]
    mistakes = [*mistakes, *found]
    if mistakes:
        raise settings_invalid([*mistakes, *_more_problems(game, mistakes, is_dry_run=is_dry_run)])


def ensure_game(terminal: Terminal, game: Game) -> None:
    """Creates the game if it is missing."""
    if _is_missing(game):
        _create_game(terminal, game)


def _is_missing(game: Game) -> bool:
    try:
        game.api.get(game.path)
    except Refused as refused:
        if refused.code != "GAME_NOT_FOUND":
            raise
        return True
    return False


def _create_checked_game(terminal: Terminal, game: Game) -> Answer:
    """Creates the game. Returns the record of its namespace.

    Deletes the game again if the service finds problems of the configuration.
    """
    _create_game(terminal, game)
    try:
        _check_at_service(game)
    except CommandFailed:
        game.api.delete(game.path)
        raise
    return game.describe_namespace()


def _create_game(terminal: Terminal, game: Game) -> None:
    _request_game(game)
    terminal.say(f"Created the game {game.project.game}.")


def _request_game(game: Game) -> None:
    groups = game.api.get("/cloud/games")["groups"]
    chosen = [
        group
        for group in groups
        if game.project.group in (None, group["group_id"], group["display_name"])
    ]
    if len(chosen) != 1:
        names = ", ".join(group["display_name"] for group in groups) or "none"
        raise InputInvalid(
            f"The game {game.project.game} does not exist, and its group is not clear.",
            f'Name it in hosting.toml: group = "…". Groups of your token: {names}.',
        )
    body = {
        "developer_group_id": chosen[0]["group_id"],
        "display_name": game.project.display_name,
        "name_id": game.project.game,
    }
    game.api.post("/cloud/games", body)


def _ensure_site(run: _Run) -> str | None:
    """Returns the id of the site with the files of `cdn.build_output`."""
    game = run.game
    cdn = game.project.config.get("cdn", {})
    if "build_output" not in cdn:
        return None
    files: dict[str, Path | bytes] = {**site_files(game.project)}
    step = f"upload the changed files of the site, which has {len(files) + 1} files"
    if run.is_dry and not _has_public_token(game):
        run.skipped.append(step)
        return _NEW
    files[PAGE_SETTINGS] = _page_settings(game)
    digests = _digests(run.terminal, files)
    listed = "".join(f"{name}\0{digest}\n" for name, digest in digests.items())
    name = f"site {hashlib.sha256(listed.encode()).hexdigest()}"
    stored, begun = find_stored(game.api, f"{game.path}/cdn/sites", "sites", name)
    if stored is not None:
        return str(stored["site_id"])
    if run.skips(step):
        return _NEW
    return _upload_site(run, name, files, digests, is_resumed=begun is not None)


def _digests(terminal: Terminal, files: Mapping[str, Path | bytes]) -> dict[str, str]:
    """Returns the SHA-256 of each file of the site, by its path there."""
    digests = {}
    with terminal.progress("Reading the site", sum(map(_length, files.values()))) as progress:
        for name, content in files.items():
            with _opened(content) as file:
                digests[name] = digest_of(file, progress)
    return digests


def _digest(terminal: Terminal, file: BinaryIO) -> str:
    """Returns the SHA-256 of an archive."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    with terminal.progress("Reading the archive", size) as progress:
        return digest_of(file, progress)


def _length(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _opened(content: Path | bytes) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _has_public_token(game: Game) -> bool:
    """Returns whether `_page_settings` finds a token, so that it creates none."""
    tokens = game.api.pages(f"{game.namespace_path}/tokens", "tokens")
    return any(token["kind"] == "pub" and "revoke_ts" not in token for token in tokens)


def _page_settings(game: Game) -> bytes:
    """Returns the content of `hosting.json`."""
    settings = {"api_url": game.api_url(), "public_token": game.public_token()}
    return json.dumps(settings, indent=1).encode()


def _upload_site(
    run: _Run,
    name: str,
    files: Mapping[str, Path | bytes],
    digests: Mapping[str, str],
    *,
    is_resumed: bool,
) -> str:
    game = run.game
    listed = [
        {"path": path, "content_length": _length(content), "sha256": digests[path]}
        for path, content in files.items()
    ]
    response = prepare(game.api, f"{game.path}/cdn/sites", {"display_name": name, "files": listed})
    requests = response.get("presigned_requests", [])
    upload_id = response["upload_id"]

    def open_file(path: str) -> BinaryIO:
        return _opened(files[path])

    send(run.terminal, game.api, "Site", upload_id, requests, open_file, is_resumed=is_resumed)
    sent = _size(sum(request["content_length"] for request in requests))
    run.terminal.say(f"Uploaded the site: {len(requests)} of {len(files)} files, {sent}.")
    return str(response["site_id"])


def _ensure_build(run: _Run, build: Build) -> str:
    """Returns the id of the build with the game server's files."""
    with _packed(run.terminal, run.game, build) as file:
        sha256 = _digest(run.terminal, file)
        return _stored_build(run, f"build {sha256}", file, {}, sha256)


def _stored_build(
    run: _Run, name: str, file: BinaryIO, kind: Mapping[str, str], sha256: str
) -> str:
    """Returns the id of the build of this name. Uploads the file if there is none."""
    game = run.game
    stored, begun = find_stored(game.api, f"{game.path}/builds", "builds", name)
    if stored is not None:
        return str(stored["build_id"])
    size = file.seek(0, os.SEEK_END)
    if run.skips(f"upload the build, {_size(size)}"):
        return _NEW
    body = {
        **kind,
        "display_name": name,
        "image_file": {"path": "server.tar", "content_length": size, "sha256": sha256},
        # The service decides which files are large enough for parts.
        "multipart_upload": True,
    }
    response = prepare(game.api, f"{game.path}/builds", body)
    requests = response.get("image_presigned_requests") or [response["image_presigned_request"]]
    upload_id, is_resumed = response["upload_id"], begun is not None

    def open_file(_path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        return contextlib.nullcontext(file)

    send(run.terminal, game.api, "Build", upload_id, requests, open_file, is_resumed=is_resumed)
    run.terminal.say(f"Uploaded the build: {_size(size)}.")
    return str(response["build_id"])


def _set_images(run: _Run, config: dict[str, Any]) -> None:
    """Names the builds of the container images in `image` and `dockerfile`."""
    tool: ImageTool | None = None
    for runtime in image_runtimes(config):
        build_id = _registered(run, runtime)
        if build_id is None:
            tool = tool or ImageTool.find()
            build_id = _uploaded_image(run, tool, runtime)
        runtime["image_id"] = build_id


def _registered(run: _Run, runtime: Mapping[str, Any]) -> str | None:
    """Returns the id of the build of an image that the service's cluster fetches from its registry.

    None: the image must be uploaded, because it has no digest, or the service is on one machine.
    """
    game, image = run.game, str(runtime.get("image", ""))
    if "dockerfile" in runtime or "@" not in image:
        return None
    name = f"image {image.rpartition('@')[2]}"
    for build in game.api.pages(f"{game.path}/builds", "builds"):
        if build.get("image") == image:
            return str(build["build_id"])
    if run.skips(f"create a build of the image {image}, or upload it"):
        return _NEW
    try:
        answer = game.api.post(f"{game.path}/builds", {"display_name": name, "image": image})
    except Refused as refused:
        if [problem.place for problem in refused.problems] != ["kind"]:
            raise
        return None
    run.terminal.say(f"Created a build of the image {image}.")
    return str(answer["build_id"])


def _uploaded_image(run: _Run, tool: ImageTool, runtime: Mapping[str, Any]) -> str:
    """Returns the id of the build with an image that this machine builds or fetches."""
    game = run.game
    image = ready_image(run.terminal, game.project, tool, runtime)
    name = f"image {tool.image_id(image)}"
    stored, _ = find_stored(game.api, f"{game.path}/builds", "builds", name)
    if stored is not None:
        return str(stored["build_id"])
    with tempfile.TemporaryDirectory(dir=game.project.work_folder) as folder:
        archive = Path(folder, "image.tar")
        tool.save(image, archive)
        with archive.open("rb") as file:
            kind = {"kind": "docker_image"}
            digest = _digest(run.terminal, file)
            return _stored_build(run, name, file, kind, digest)


@contextlib.contextmanager
def _packed(terminal: Terminal, game: Game, build: Build) -> Iterator[BinaryIO]:
    entries = build_entries(build, game.project)
    description = dict(build.description)
    if description:
        entries = [entry for entry in entries if entry.name != DESCRIPTION]
    packages = installed_packages(terminal, game.project)
    if packages is not None:
        entries += packed_packages(packages)
        environment = description.setdefault("env", {})
        description["env"] = {"PYTHONPATH": PREFIX, **environment}
    size = sum(entry.path.lstat().st_size for entry in entries)
    folder = game.project.work_folder
    # The file writes its last bytes when it is closed.
    with (
        writing_to(folder, f"The archive of the build needs {_size(size)} there."),
        tempfile.TemporaryFile(dir=folder) as file,
    ):
        with terminal.progress("Packing the build", size) as progress:
            pack(entries, description, file, progress)
        file.seek(0)
        yield file


def _set_build(config: dict[str, Any], build_id: str) -> None:
    """Names the build in each runtime that names no other one."""
    matchmaker = config.setdefault("matchmaker", {})
    modes = matchmaker.get("game_modes", {}).values()
    runtimes = [mode["docker"] for mode in modes if "docker" in mode]
    if "docker" in matchmaker or len(runtimes) < len(modes):
        runtimes.append(matchmaker.setdefault("docker", {}))
    for runtime in runtimes:
        runtime.setdefault("image_id", build_id)


def _finish(run: _Run, running: Answer, config: dict[str, Any], *, has_trial: bool) -> None:
    """Creates the version, tries and sets it, unless the namespace runs the same one."""
    game = run.game
    current = game.api.get(f"{game.path}/versions/{running['version_id']}")["version"]
    result: dict[str, Any] = {
        "game": game.project.game,
        "namespace": game.namespace,
        "url": running["site_url"],
    }
    if current["config"] == config:
        shown = {"version": current["display_name"], "version_id": current["version_id"]}
        run.terminal.finish(
            {**result, **shown, "changed": False},
            f"Nothing changed: {game.namespace} runs version {current['display_name']}.",
        )
        return
    if run.is_dry:
        modes = modes_on_trial(config) if has_trial else []
        run.skipped.append("create a version")
        run.skipped.extend(f"start a lobby of the mode {mode} on trial" for mode in modes)
        run.skipped.append(f"set the version in {game.namespace}")
        _finish_dry_run(run, result)
        return
    name = _version_name(game)
    body = {"display_name": name, "config": config}
    version_id = game.api.post(f"{game.path}/versions", body)["version_id"]
    if has_trial:
        try_version(run.terminal, game, version_id, config)
    switch_version(game, running, version_id, has_new_site=_has_new_site(current, config))
    run.terminal.finish(
        {**result, "version": name, "version_id": version_id, "changed": True},
        f"{game.namespace} runs version {name}.",
    )


def _has_new_site(current: Answer, config: Mapping[str, Any]) -> bool:
    new = config.get("cdn", {}).get("site_id")
    return new is not None and new != current["config"].get("cdn", {}).get("site_id")


def _finish_dry_run(run: _Run, result: Mapping[str, Any]) -> None:
    run.terminal.finish(
        {**result, "changed": False, "steps": run.skipped},
        "Nothing was changed. A deployment would:",
        *(f"  {step}" for step in run.skipped),
    )


def _more_problems(game: Game, mistakes: Sequence[Problem], *, is_dry_run: bool) -> list[Problem]:
    """Returns the problems that the service finds in the rest of the configuration."""
    try:
        is_new = _is_missing(game)
        if is_new and is_dry_run:
            return []
        if is_new:
            _request_game(game)
        try:
            found = _problems_at_service(game)
        finally:
            if is_new:
                game.api.delete(game.path)
    except Interrupted:
        raise
    except CommandFailed:
        # The mistakes that are known are enough to go on.
        return []
    places = [mistake.place for mistake in mistakes]
    return [one for one in found if not any(f"{one.place}.".startswith(f"{at}.") for at in places)]


def _check_at_service(game: Game) -> None:
    """Raises InputInvalid if the service finds problems of the configuration."""
    if problems := _problems_at_service(game):
        raise settings_invalid(problems)


def _problems_at_service(game: Game) -> list[Problem]:
    body = {"display_name": "check", "config": game.project.config}
    try:
        found = game.api.post(f"{game.path}/versions/validate", body)["errors"]
        return [_problem(one["path"][:-1], str(one["message"])) for one in found]
    except Refused as refused:
        if not refused.problems:
            raise
        return [_problem(one.place.split("."), one.sentence) for one in refused.problems]


def _problem(path: Sequence[str], message: str) -> Problem:
    place = ".".join(path[1:] if path[:1] == ["config"] else path)
    return Problem(place, message.removeprefix(".".join(path)).strip())


def _version_name(game: Game) -> str:
    """Returns a new name: the one of git, or a counter of the service."""
    described = None
    if shutil.which("git"):
        ended = subprocess.run(
            ["git", "describe", "--always", "--tags", "--dirty"],
            cwd=game.project.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        described = ended.stdout.strip() if ended.returncode == 0 else None
    taken = {
        version["display_name"] for version in game.api.pages(f"{game.path}/versions", "versions")
    }
    if described and described not in taken:
        return described
    while True:
        answer = game.api.post(f"{game.path}/versions/reserve-name")
        name = str(answer["version_display_name"])
        if name not in taken:
            return name


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.1f} KiB"
