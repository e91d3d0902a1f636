"""`pyservice deploy`: uploads what changed, creates a version and sets it in a namespace.

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
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyservice_cli.build_commands import run_server_command, run_site_command
from pyservice_cli.container_images import ImageTool, image_runtimes, ready_image
from pyservice_cli.failures import CommandFailed, InputInvalid, Problem, Refused
from pyservice_cli.games import Game
from pyservice_cli.packing import DESCRIPTION, Entry, digest_of, files_of, pack
from pyservice_cli.project import Build, make_work_folder
from pyservice_cli.python_packages import PREFIX, installed_packages
from pyservice_cli.terminal import Terminal
from pyservice_cli.uploading import find_stored, prepare, send

PAGE_SETTINGS: Final = "hosting.json"
"""File of each site with the API's address and a public token. The game's page reads it."""


def deploy(terminal: Terminal, game: Game, *, is_dry_run: bool) -> None:
    """Deploys a game."""
    make_work_folder(game.project.folder)
    config = copy.deepcopy(game.project.config)
    is_new = ensure_game(terminal, game)
    try:
        _validate(game, config)
    except CommandFailed:
        if is_new:
            game.api.delete(game.path)
        raise
    site_id = _ensure_site(terminal, game)
    if site_id is not None:
        config["cdn"]["site_id"] = site_id
    _set_images(terminal, game, config)
    if game.project.build is not None:
        _set_build(config, _ensure_build(terminal, game, game.project.build))
    _finish(terminal, game, config, is_dry_run=is_dry_run)


def ensure_game(terminal: Terminal, game: Game) -> bool:
    """Creates the game if it is missing, and returns whether it did."""
    try:
        game.api.get(game.path)
    except Refused as refused:
        if refused.code != "GAME_NOT_FOUND":
            raise
    else:
        return False
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
    terminal.say(f"Created the game {game.project.game}.")
    return True


def _ensure_site(terminal: Terminal, game: Game) -> str | None:
    """Returns the id of the site with the files of `cdn.build_output`."""
    cdn = game.project.config.get("cdn", {})
    output = cdn.get("build_output")
    if output is None:
        return None
    run_site_command(terminal, game.project)
    entries = [entry for entry in files_of(game.project.folder / output) if not entry.target]
    settings = _page_settings(game)
    digest = hashlib.sha256()
    for entry in entries:
        with entry.path.open("rb") as file:
            digest.update(f"{entry.name}\0{digest_of(file)}\n".encode())
    digest.update(settings)
    name = f"site {digest.hexdigest()}"
    stored, begun = find_stored(game.api, f"{game.path}/cdn/sites", "sites", name)
    if stored is not None:
        return str(stored["site_id"])
    return _upload_site(terminal, game, name, entries, settings, is_resumed=begun is not None)


def _page_settings(game: Game) -> bytes:
    """Returns the content of `hosting.json`."""
    token = game.api.post(f"{game.namespace_path}/tokens/public", {"reuse": True})["token"]
    api_url = game.api.get("/cloud/bootstrap")["origins"]["api"]
    return json.dumps({"api_url": api_url, "public_token": token}, indent=1).encode()


def _upload_site(
    terminal: Terminal,
    game: Game,
    name: str,
    entries: Sequence[Entry],
    settings: bytes,
    *,
    is_resumed: bool,
) -> str:
    sizes = {entry.name: entry.path.stat().st_size for entry in entries}
    listed = [{"path": path, "content_length": size} for path, size in sizes.items()]
    listed.append({"path": PAGE_SETTINGS, "content_length": len(settings)})
    response = prepare(game.api, f"{game.path}/cdn/sites", {"display_name": name, "files": listed})
    paths = {entry.name: entry.path for entry in entries}

    def open_file(path: str) -> BinaryIO:
        return io.BytesIO(settings) if path == PAGE_SETTINGS else paths[path].open("rb")

    requests = response["presigned_requests"]
    upload_id = response["upload_id"]
    send(terminal, game.api, "Site", upload_id, requests, open_file, is_resumed=is_resumed)
    total = sum(sizes.values()) + len(settings)
    terminal.say(f"Uploaded the site: {len(listed)} files, {_size(total)}.")
    return str(response["site_id"])


def _ensure_build(terminal: Terminal, game: Game, build: Build) -> str:
    """Returns the id of the build with the game server's files."""
    with _packed(terminal, game, build) as file:
        sha256 = digest_of(file)
        return _stored_build(terminal, game, f"build {sha256}", file, {}, sha256)


def _stored_build(
    terminal: Terminal,
    game: Game,
    name: str,
    file: BinaryIO,
    kind: Mapping[str, str],
    sha256: str,
) -> str:
    """Returns the id of the build of this name. Uploads the file if there is none."""
    stored, begun = find_stored(game.api, f"{game.path}/builds", "builds", name)
    if stored is not None:
        return str(stored["build_id"])
    size = file.seek(0, os.SEEK_END)
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

    send(terminal, game.api, "Build", upload_id, requests, open_file, is_resumed=is_resumed)
    terminal.say(f"Uploaded the build: {_size(size)}.")
    return str(response["build_id"])


def _set_images(terminal: Terminal, game: Game, config: dict[str, Any]) -> None:
    """Names the builds of the container images in `image` and `dockerfile`."""
    runtimes = list(image_runtimes(config))
    if not runtimes:
        return
    tool = ImageTool.find()
    for runtime in runtimes:
        image = ready_image(terminal, game.project, tool, runtime)
        name = f"image {tool.image_id(image)}"
        stored, _ = find_stored(game.api, f"{game.path}/builds", "builds", name)
        if stored is not None:
            runtime["image_id"] = stored["build_id"]
            continue
        with tempfile.TemporaryDirectory(dir=game.project.work_folder) as folder:
            archive = Path(folder, "image.tar")
            tool.save(image, archive)
            with archive.open("rb") as file:
                kind = {"kind": "docker_image"}
                digest = digest_of(file)
                runtime["image_id"] = _stored_build(terminal, game, name, file, kind, digest)


@contextlib.contextmanager
def _packed(terminal: Terminal, game: Game, build: Build) -> Iterator[BinaryIO]:
    run_server_command(terminal, game.project)
    entries = files_of(build.folder, build.exclude)
    names = {entry.name for entry in entries}
    description = dict(build.description)
    if not description and DESCRIPTION not in names:
        raise InputInvalid(
            "hosting.toml has problems. Nothing was changed.",
            "",
            [Problem("build.command", 'is missing, such as command = ["python3", "server.py"]')],
        )
    if description:
        entries = [entry for entry in entries if entry.name != DESCRIPTION]
    packages = installed_packages(terminal, game.project)
    if packages is not None:
        entries += [
            Entry(f"{PREFIX}/{one.name}", one.path, one.target) for one in files_of(packages)
        ]
        environment = description.setdefault("env", {})
        description["env"] = {"PYTHONPATH": PREFIX, **environment}
    with tempfile.TemporaryFile(dir=game.project.work_folder) as file:
        pack(entries, description, file)
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


def _finish(terminal: Terminal, game: Game, config: dict[str, Any], *, is_dry_run: bool) -> None:
    """Creates the version, unless the namespace runs the same one, and sets it."""
    namespace = game.api.get(game.namespace_path)["namespace"]
    current = game.api.get(f"{game.path}/versions/{namespace['version_id']}")["version"]
    result = {
        "game": game.project.game,
        "namespace": game.namespace,
        "url": namespace["site_url"],
    }
    if current["config"] == config:
        terminal.finish(
            {
                **result,
                "version": current["display_name"],
                "version_id": current["version_id"],
                "changed": False,
            },
            f"Nothing changed: {game.namespace} runs version {current['display_name']}.",
        )
        return
    name = _version_name(game)
    body = {"display_name": name, "config": config}
    if is_dry_run:
        terminal.finish({**result, "changed": False}, "The configuration is valid.")
        return
    version_id = game.api.post(f"{game.path}/versions", body)["version_id"]
    game.api.put(f"{game.namespace_path}/version", {"version_id": version_id})
    terminal.finish(
        {**result, "version": name, "version_id": version_id, "changed": True},
        f"{game.namespace} runs version {name}.",
    )


def _validate(game: Game, config: Mapping[str, Any]) -> None:
    """Raises InputInvalid with all problems that the service finds."""
    body = {"display_name": "check", "config": config}
    try:
        found = game.api.post(f"{game.path}/versions/validate", body)["errors"]
        problems = [Problem(_place(one["path"][:-1]), _rest(one)) for one in found]
    except Refused as refused:
        problems = [Problem(_place(one.place.split(".")), one.sentence) for one in refused.problems]
        if not problems:
            raise
    if problems:
        raise InputInvalid("hosting.toml has problems. Nothing was changed.", "", problems)


def _place(path: Sequence[str]) -> str:
    return ".".join(path[1:] if path[:1] == ["config"] else path)


def _rest(error: Mapping[str, Any]) -> str:
    return str(error["message"]).removeprefix(".".join(error["path"][:-1])).strip()


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
