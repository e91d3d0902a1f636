"""Container images of game servers, built and exported by docker, podman or buildah."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyservice_cli.failures import CommandFailed, InputInvalid, Problem
from pyservice_cli.project import Project
from pyservice_cli.terminal import Terminal

_TOOLS: Final = ("docker", "podman", "buildah")
_DOCKER: Final = {
    "build": ("build",),
    "id": ("image", "inspect", "--format", "{{.Id}}", "NAME"),
    "save": ("save", "--output", "FILE", "NAME"),
}
_BUILDAH: Final = {
    # Without its cache, each build has an id of its own.
    "build": ("build", "--layers"),
    "id": ("inspect", "--type", "image", "--format", "{{.FromImageID}}", "NAME"),
    "save": ("push", "--quiet", "NAME", "docker-archive:FILE:NAME"),
}


@dataclass(frozen=True, slots=True)
class ImageTool:
    """A program that builds and exports images."""

    program: str

    @classmethod
    def find(cls) -> ImageTool:
        """Returns the first one that works. Raises CommandFailed."""
        problems = []
        for name in _TOOLS:
            program = shutil.which(name)
            if program is None:
                problems.append(Problem(name, "is not installed"))
                continue
            ended = _run([program, "info"])
            if ended.returncode == 0:
                return cls(program)
            lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
            problems.append(Problem(name, lines[-1]))
        raise CommandFailed(
            "`image` and `dockerfile` need docker, podman or buildah, and none works here.",
            "Install one, or start its service. Without them, [build] packs the files of a folder.",
            problems,
        )

    def build(
        self, terminal: Terminal, project: Project, name: str, runtime: Mapping[str, Any]
    ) -> None:
        """Builds an image of the game's folder under this name."""
        file = project.folder / runtime["dockerfile"]
        if not file.is_file():
            raise InputInvalid(f"The dockerfile {file} does not exist.")
        words = [*self._words("build", name), "--file", str(file), "--tag", name]
        for key, value in _build_arguments(project, runtime).items():
            words += ["--build-arg", f"{key}={value}"]
        words.append(str(project.folder))
        ended = subprocess.run(words, stdout=terminal.program_output, check=False)
        if ended.returncode:
            raise CommandFailed(
                f"The image of {file} cannot be built: exit status {ended.returncode}.",
                "The lines above say why.",
            )

    def pull(self, name: str) -> None:
        """Fetches an image, unless this machine has it."""
        if _run(self._words("id", name)).returncode:
            self._checked([self.program, "pull", name], f"The image {name} cannot be fetched")

    def image_id(self, name: str) -> str:
        words = self._words("id", name)
        return self._checked(words, f"The image {name} cannot be read").rpartition(":")[2]

    def save(self, name: str, file: Path) -> None:
        """Writes the archive of an image to a file that does not exist."""
        self._checked(self._words("save", name, file), f"The image {name} cannot be exported")

    def _words(self, step: str, name: str, file: Path | None = None) -> list[str]:
        forms = _BUILDAH if Path(self.program).stem == "buildah" else _DOCKER
        words = (word.replace("NAME", name).replace("FILE", str(file)) for word in forms[step])
        return [self.program, *words]

    def _checked(self, words: Sequence[str], problem: str) -> str:
        ended = _run(words)
        if ended.returncode:
            raise CommandFailed(f"{problem}: {ended.stderr.strip()}")
        return ended.stdout.strip()


def image_runtimes(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields each table `docker` with an image that has no build yet."""
    for runtime in _runtimes(config).values():
        if not {"image", "dockerfile"}.isdisjoint(runtime) and "image_id" not in runtime:
            yield runtime


def image_problems(project: Project, *, has_files: bool) -> Iterator[Problem]:
    """Yields why no image can be built. Without `has_files`, a command can still make dockerfiles."""
    for place, runtime in _runtimes(project.config).items():
        if "dockerfile" not in runtime:
            if "build_args" in runtime:
                yield Problem(f"{place}.build_args", "needs a dockerfile")
        elif has_files and "image_id" not in runtime:
            file = project.folder / runtime["dockerfile"]
            if not file.is_file():
                yield Problem(f"{place}.dockerfile", f"does not exist: {file}")


def _runtimes(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the tables `docker` of the matchmaker and of its game modes, by their place."""
    matchmaker = config.get("matchmaker", {})
    levels = {"matchmaker": matchmaker}
    for name, mode in matchmaker.get("game_modes", {}).items():
        levels[f"matchmaker.game_modes.{name}"] = mode
    return {f"{place}.docker": level.get("docker", {}) for place, level in levels.items()}


def ready_image(
    terminal: Terminal, project: Project, tool: ImageTool, runtime: Mapping[str, Any]
) -> str:
    """Builds the image of `dockerfile`, or fetches `image`. Returns its name at the tool."""
    if "dockerfile" not in runtime:
        tool.pull(runtime["image"])
        return str(runtime["image"])
    name = runtime.get("image") or f"localhost/{project.game}:latest"
    tool.build(terminal, project, name, runtime)
    return str(name)


def _build_arguments(project: Project, runtime: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns `build_args`, and the game module of Unreal as `GAME_MODULE`."""
    module = {"GAME_MODULE": project.game_module} if project.game_module else {}
    return {**module, **runtime.get("build_args", {})}


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)
