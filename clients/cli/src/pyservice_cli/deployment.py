"""`pyservice deploy`: uploads what changed, creates a version and sets it in a namespace.

Each step finds the result of an earlier run by content, so a repeated deployment changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyservice_cli.api import Api
from pyservice_cli.connections import find_connection
from pyservice_cli.failures import CommandFailed, InputInvalid, Problem, Refused
from pyservice_cli.packing import DESCRIPTION, Entry, digest_of, files_of, pack
from pyservice_cli.project import Build, Project, read_project
from pyservice_cli.python_packages import PREFIX, installed_packages
from pyservice_cli.terminal import Terminal

PAGE_SETTINGS: Final = "hosting.json"
"""File of each site with the API's address and a public token. The game's page reads it."""
_MULTIPART_BYTES: Final = 100 << 20
_DIGEST_TAG: Final = "sha256"


@dataclass(slots=True)
class _Steps:
    """The steps of one deployment, and the things that they made."""

    terminal: Terminal
    project: Project
    api: Api
    namespace: str
    is_dry_run: bool

    @property
    def game_path(self) -> str:
        return f"/cloud/games/{self.project.game}"

    @property
    def namespace_path(self) -> str:
        return f"{self.game_path}/namespaces/{self.namespace}"


def deploy(
    terminal: Terminal,
    folder: Path,
    namespace: str | None,
    profile: str | None,
    *,
    is_dry_run: bool,
) -> None:
    """Deploys the game of a folder."""
    project = read_project(folder)
    api = Api(find_connection(profile))
    steps = _Steps(terminal, project, api, namespace or project.namespace, is_dry_run)
    _make_work_folder(project)
    _ensure_game(steps)
    config = copy.deepcopy(project.config)
    site_id = _ensure_site(steps)
    if site_id is not None:
        config["cdn"]["site_id"] = site_id
    if project.build is not None:
        _set_build(config, _ensure_build(steps, project.build))
    _finish(steps, config)


def _make_work_folder(project: Project) -> None:
    project.work_folder.mkdir(exist_ok=True)
    ignored = project.work_folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n")


def _ensure_game(steps: _Steps) -> None:
    try:
        steps.api.get(steps.game_path)
    except Refused as refused:
        if refused.code != "GAME_NOT_FOUND":
            raise
    else:
        return
    groups = steps.api.get("/cloud/games")["groups"]
    chosen = [
        group
        for group in groups
        if steps.project.group in (None, group["group_id"], group["display_name"])
    ]
    if len(chosen) != 1:
        names = ", ".join(group["display_name"] for group in groups) or "none"
        raise InputInvalid(
            f"The game {steps.project.game} does not exist, and its group is not clear.",
            f'Name it in hosting.toml: group = "…". Groups of your token: {names}.',
        )
    body = {
        "developer_group_id": chosen[0]["group_id"],
        "display_name": steps.project.display_name,
        "name_id": steps.project.game,
    }
    steps.api.post("/cloud/games", body)
    steps.terminal.say(f"Created the game {steps.project.game}.")


def _ensure_site(steps: _Steps) -> str | None:
    """Returns the id of the site with the files of `cdn.build_output`."""
    cdn = steps.project.config.get("cdn", {})
    output = cdn.get("build_output")
    if output is None:
        return None
    _run_site_command(steps.project, cdn)
    entries = [entry for entry in files_of(steps.project.folder / output) if not entry.target]
    settings = _page_settings(steps)
    digest = hashlib.sha256()
    for entry in entries:
        with entry.path.open("rb") as file:
            digest.update(f"{entry.name}\0{digest_of(file)}\n".encode())
    digest.update(settings)
    name = f"site {digest.hexdigest()}"
    for site in steps.api.pages(f"{steps.game_path}/cdn/sites", "sites"):
        if site["display_name"] == name and site["complete"]:
            return str(site["site_id"])
    return _upload_site(steps, name, entries, settings)


def _run_site_command(project: Project, cdn: Mapping[str, Any]) -> None:
    command = cdn.get("build_command")
    if command is None:
        return
    environment = {**os.environ, **cdn.get("build_env", {})}
    ended = subprocess.run(command, shell=True, cwd=project.folder, env=environment, check=False)
    if ended.returncode:
        raise CommandFailed(
            f"cdn.build_command ended with exit status {ended.returncode}.",
            "Its lines above say why.",
        )


def _page_settings(steps: _Steps) -> bytes:
    """Returns the content of `hosting.json`."""
    token = steps.api.post(f"{steps.namespace_path}/tokens/public", {"reuse": True})["token"]
    api_url = steps.api.get("/cloud/bootstrap")["origins"]["api"]
    return json.dumps({"api_url": api_url, "public_token": token}, indent=1).encode()


def _upload_site(steps: _Steps, name: str, entries: Sequence[Entry], settings: bytes) -> str:
    sizes = {entry.name: entry.path.stat().st_size for entry in entries}
    listed = [{"path": path, "content_length": size} for path, size in sizes.items()]
    listed.append({"path": PAGE_SETTINGS, "content_length": len(settings)})
    response = steps.api.post(
        f"{steps.game_path}/cdn/sites", {"display_name": name, "files": listed}
    )
    paths = {entry.name: entry.path for entry in entries}
    total = sum(sizes.values()) + len(settings)
    with (
        steps.terminal.progress("Site", total) as progress,
        tempfile.TemporaryFile() as settings_file,
    ):
        settings_file.write(settings)
        for request in response["presigned_requests"]:
            size = request["content_length"]
            if request["path"] == PAGE_SETTINGS:
                settings_file.seek(0)
                steps.api.upload(request["url"], settings_file, size, progress)
            else:
                with paths[request["path"]].open("rb") as file:
                    steps.api.upload(request["url"], file, size, progress)
    steps.api.post(f"/cloud/uploads/{response['upload_id']}/complete")
    steps.terminal.say(f"Uploaded the site: {len(listed)} files, {_size(total)}.")
    return str(response["site_id"])


def _ensure_build(steps: _Steps, build: Build) -> str:
    """Returns the id of the build with the game server's files."""
    with _packed(steps, build) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        sha256 = digest_of(file)
        name = f"build {sha256}"
        for stored in steps.api.pages(f"{steps.game_path}/builds", "builds"):
            if stored["display_name"] == name and stored["complete"]:
                return str(stored["build_id"])
        body = {
            "display_name": name,
            "image_file": {"path": "server.tar", "content_length": size, "sha256": sha256},
            "multipart_upload": size >= _MULTIPART_BYTES,
        }
        response = steps.api.post(f"{steps.game_path}/builds", body)
        requests = response.get("image_presigned_requests") or [response["image_presigned_request"]]
        with steps.terminal.progress("Build", size) as progress:
            for request in requests:
                file.seek(request.get("byte_offset", 0))
                steps.api.upload(request["url"], file, request["content_length"], progress)
    steps.api.post(f"/cloud/uploads/{response['upload_id']}/complete")
    steps.terminal.say(f"Uploaded the build: {_size(size)}.")
    return str(response["build_id"])


@contextlib.contextmanager
def _packed(steps: _Steps, build: Build) -> Iterator[BinaryIO]:
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
    packages = installed_packages(steps.terminal, steps.project)
    if packages is not None:
        entries += [
            Entry(f"{PREFIX}/{one.name}", one.path, one.target) for one in files_of(packages)
        ]
        environment = description.setdefault("env", {})
        description["env"] = {"PYTHONPATH": PREFIX, **environment}
    with tempfile.TemporaryFile(dir=steps.project.work_folder) as file:
        pack(entries, description, file)
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


def _finish(steps: _Steps, config: dict[str, Any]) -> None:
    """Creates the version, unless the namespace runs the same one, and sets it."""
    namespace = steps.api.get(steps.namespace_path)["namespace"]
    current = steps.api.get(f"{steps.game_path}/versions/{namespace['version_id']}")["version"]
    result = {
        "game": steps.project.game,
        "namespace": steps.namespace,
        "url": namespace["site_url"],
    }
    if current["config"] == config:
        steps.terminal.finish(
            {**result, "version": current["display_name"], "changed": False},
            f"Nothing changed: {steps.namespace} runs version {current['display_name']}.",
        )
        return
    name = _version_name(steps)
    body = {"display_name": name, "config": config}
    _validate(steps, body)
    if steps.is_dry_run:
        steps.terminal.finish({**result, "changed": False}, "The configuration is valid.")
        return
    version_id = steps.api.post(f"{steps.game_path}/versions", body)["version_id"]
    steps.api.put(f"{steps.namespace_path}/version", {"version_id": version_id})
    steps.terminal.finish(
        {**result, "version": name, "version_id": version_id, "changed": True},
        f"{steps.namespace} runs version {name}.",
    )


def _validate(steps: _Steps, body: Mapping[str, Any]) -> None:
    try:
        found = steps.api.post(f"{steps.game_path}/versions/validate", body)["errors"]
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


def _version_name(steps: _Steps) -> str:
    """Returns a new name: the one of git, or a counter of the service."""
    described = None
    if shutil.which("git"):
        ended = subprocess.run(
            ["git", "describe", "--always", "--tags", "--dirty"],
            cwd=steps.project.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        described = ended.stdout.strip() if ended.returncode == 0 else None
    taken = {
        version["display_name"]
        for version in steps.api.pages(f"{steps.game_path}/versions", "versions")
    }
    if described and described not in taken:
        return described
    while True:
        answer = steps.api.post(f"{steps.game_path}/versions/reserve-name")
        name = str(answer["version_display_name"])
        if name not in taken:
            return name


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else f"{count / (1 << 10):.1f} KiB"
