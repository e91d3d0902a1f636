"""The developer's game server as a process of this machine, attached to a lobby."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from pyservice_cli.failures import InputInvalid
from pyservice_cli.packing import DESCRIPTION
from pyservice_cli.project import Build

STOP_TIMEOUT_S: Final = 5.0
"""Time from SIGTERM to SIGKILL. Shorter than that of the service, because a developer waits."""
_OUTPUT_TIMEOUT_S: Final = 1.0
_REFERENCE: Final = re.compile(r"\$(\$?)(\(([A-Za-z_]\w*)\))")


class AttachedServer:
    """A running game server, in a process group of its own. Its output goes to the terminal."""

    def __init__(
        self,
        build: Build,
        runtime: Mapping[str, Any],
        variables: Mapping[str, str],
        packages: Path | None,
        output: IO[str],
    ) -> None:
        description = _description(build)
        paths = {} if packages is None else {"PYTHONPATH": str(packages.absolute())}
        environment = {
            **os.environ,
            **paths,
            **description.get("env", {}),
            **runtime.get("env", {}),
            **variables,
        }
        words = [*description["command"], *runtime.get("args", ())]
        folder = build.folder / description.get("workdir", "")
        self.last_line = ""
        self._process = _started(
            _found([_expand(word, environment) for word in words], folder), folder, environment
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._copy, args=(self._process.stdout, output), daemon=True
        )
        self._reader.start()

    def exit_status(self) -> int | None:
        """Returns the exit status, or None while the process runs."""
        status = self._process.poll()
        if status is not None:
            # A child that outlives the server can keep the pipe open.
            self._reader.join(_OUTPUT_TIMEOUT_S)
        return status

    def stop(self) -> None:
        """Ends the process and its children, with SIGKILL if SIGTERM is not enough."""
        _signal(self._process, is_forced=False)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _signal(self._process, is_forced=True)
            self._process.wait()
            self._reader.join(_OUTPUT_TIMEOUT_S)

    def _copy(self, lines: IO[bytes], output: IO[str]) -> None:
        with lines:
            for line in lines:
                text = line.decode(errors="replace")
                self.last_line = text.strip() or self.last_line
                output.write(text)
                output.flush()


if sys.platform == "win32":
    _OWN_GROUP: Mapping[str, Any] = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}

    def _signal(process: subprocess.Popen[bytes], *, is_forced: bool) -> None:
        if is_forced:
            process.kill()
        else:
            process.send_signal(signal.CTRL_BREAK_EVENT)

else:
    _OWN_GROUP: Mapping[str, Any] = {"process_group": 0}

    def _signal(process: subprocess.Popen[bytes], *, is_forced: bool) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL if is_forced else signal.SIGTERM)
        except ProcessLookupError:
            return


def _started(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **_OWN_GROUP,
        )
    except OSError as error:
        raise InputInvalid(f"The program {command[0]} cannot start: {error.strerror}.") from None


def _description(build: Build) -> Mapping[str, Any]:
    """Returns the content of `server.json`. Raises InputInvalid."""
    if build.description:
        return build.description
    path = build.folder / DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputInvalid(
            "The game server has no command.",
            'Name it in hosting.toml: [build] command = ["python3", "server.py"]',
        ) from None
    except ValueError as error:
        raise InputInvalid(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict) or not content.get("command"):
        raise InputInvalid(f"{path} has no command.")
    return content


def _expand(word: str, variables: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by the variable, as the service does."""
    return _REFERENCE.sub(
        lambda found: f"${found[2]}" if found[1] else variables.get(found[3], found[0]), word
    )


def _found(command: list[str], folder: Path) -> list[str]:
    program, *arguments = command
    if program in ("python", "python3"):
        # `build.python_requirements` are packages of this interpreter.
        return [sys.executable, *arguments]
    found = shutil.which(folder.absolute() / program if "/" in program else program)
    if found is None:
        raise InputInvalid(
            f"The program {program} of build.command is not in {folder.absolute()} or not executable."
            if "/" in program
            else f"The program {program} of build.command is not installed."
        )
    return [found, *arguments]
