"""Runs conformance cases: one helper, through its driver, against the real service.

`clients/conformance/README.md` describes the steps of a case.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tests.clients.lossy_proxy import Fault, LossyProxy, Seen
from tests.support.full_service import Developer
from tests.support.stored_openapi import stored_openapi
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, POLL_S

Json = Any
LINE_BYTES_MAX: Final = 1 << 24
patience_s = PATIENCE_S
CASES: Final[dict[str, Json]] = {
    case["name"]: case
    for case in json.loads((ROOT / "clients/conformance/cases.json").read_text())["cases"]
}


class DriverExited(Exception):
    """The driver has exited by itself, so the case says nothing about its helper."""


class Driver:
    """The driver process of one helper."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._results: dict[str, Json] = {}
        self.logs: list[Json] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, command: Sequence[str]) -> Driver:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=LINE_BYTES_MAX
        )
        return cls(process)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            value = json.loads(line)
            if "id" in value:
                self._results[value["id"]] = value
            else:
                self.logs.append(value)

    async def send(self, name: str, do: str, fields: Json) -> None:
        assert self._process.stdin is not None
        command = json.dumps({"id": name, "do": do, "with": fields})
        self._process.stdin.write(command.encode() + b"\n")
        await self._process.stdin.drain()

    async def result(self, name: str) -> Json:
        await until_met(lambda: name in self._results or self._reading.done())
        if name not in self._results:
            await self._check_exit()
        return self._results[name]

    async def _check_exit(self) -> None:
        """Raises DriverExited, or AssertionError if the helper has caused the end of the output."""
        assert not self._reading.exception(), "the driver has printed a line that is not JSON"
        exit_code = await self._process.wait()
        assert exit_code >= 0, f"{signal.Signals(-exit_code).name} has ended the driver"
        raise DriverExited(f"exit code {exit_code}")

    def has_result(self, name: str) -> bool:
        return name in self._results

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await asyncio.wait({self._reading})


class World:
    """One case: a game with lobbies, a proxy, and the driver of a helper."""

    def __init__(self, developer: Developer, game: Json, proxy: LossyProxy, driver: Driver) -> None:
        self.developer, self.game, self.proxy, self.driver = developer, game, proxy, driver
        self.values: dict[str, Json] = {"proxy": proxy.url, **game["tokens"]}
        self._count = 0

    async def attach(self, lobby: Json) -> None:
        mode = lobby.get("mode", "duel")
        fields = {
            "game_id": self.game["game_id"],
            "namespace_id": "prod",
            "game_mode": mode,
            "ports": {"game": {"address": "127.0.0.1", "port": 4000}},
            "tags": lobby.get("tags", {}),
        }
        attached = await self.service_call("attach", fields, self.game["tokens"]["service_token"])
        self.values[lobby["lobby"]] = attached
        if lobby.get("is_ready", True):
            await self.service_call("ready", {}, attached["lobby_token"])

    async def detach(self, lobby_id: str) -> None:
        fields = {"game_id": self.game["game_id"], "lobby_id": lobby_id}
        await self.service_call("detach", fields, self.game["tokens"]["service_token"])

    async def close(self) -> None:
        """Ends the lobbies of this case, also those that the helper has created."""
        places = [value for value in self.values.values() if isinstance(value, dict)]
        for lobby_id in {place["lobby_id"] for place in places if place.get("lobby_id")}:
            fields = {"game_id": self.game["game_id"], "lobby_id": lobby_id}
            token = self.game["tokens"]["service_token"]
            await self.developer.client.call("detach", fields, token=token)

    async def service_call(self, slug: str, fields: Json, token: str, code: str = "OK") -> Json:
        answer = await self.developer.client.call(slug, fields, token=token)
        assert answer.code == code, (slug, answer)
        return answer.body

    def resolve(self, value: Json) -> Json:
        """Replaces each text `$name.field` by the value of an earlier step."""
        if isinstance(value, dict):
            return {name: self.resolve(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.resolve(one) for one in value]
        if isinstance(value, str) and value.startswith("$"):
            found: Json = self.values
            for part in value[1:].split("."):
                found = found[int(part)] if isinstance(found, list) else found[part]
            return found
        return value

    async def run(self, case: Json) -> None:
        """Attaches the lobby `a`, opens the helper for its player or its server, and runs the steps."""
        lobby = {"lobby": "a", "is_ready": "server" not in case, **case.get("lobby", {})}
        await self.lobby(lobby)
        if "player" in case:
            fields = {"api_url": "$proxy", "token": "$public_token", **case["player"]}
            await self.do({"do": "open_player", "with": self.resolve(fields)})
        if "server" in case:
            environment = {"HOSTING_API_URL": "$proxy", "HOSTING_LOBBY_TOKEN": "$a.lobby_token"}
            environment |= case["server"].get("environment", {})
            fields = {**case["server"], "environment": environment}
            await self.do({"do": "open_server", "with": self.resolve(fields)})
        await self.run_steps(case["steps"])

    async def run_steps(self, steps: Sequence[Json]) -> None:
        for number, step in enumerate(steps):
            kind = next(name for name in STEPS if name in step)
            try:
                await STEPS[kind](self, self.resolve(step))
            except (AssertionError, TimeoutError, KeyError) as error:
                raise AssertionError(f"step {number} {step}: {error!r}") from error

    async def do(self, step: Json) -> None:
        self._count += 1
        name = step.get("as", f"step {self._count}")
        await self.driver.send(name, step["do"], step.get("with", {}))
        if not step.get("later"):
            await self.finish({**step, "finish": name})

    async def finish(self, step: Json) -> None:
        answer = await self.driver.result(step["finish"])
        if "error" in step:
            assert "error" in answer, answer
            assert_contains(answer["error"], step["error"])
            return
        assert "ok" in answer, answer
        self.values[step["finish"]] = answer["ok"]
        if "see" in step:
            assert_contains(answer["ok"], step["see"])

    async def service(self, step: Json) -> None:
        token = step.get("token", self.values["public_token"])
        fields = step.get("with", {})
        name, code = step["service"], step.get("code", "OK")
        if name == "detach":
            await self.detach(**fields)
            return

        async def call() -> None:
            body = await self.service_call(name, fields, token, code)
            self.values[step.get("as", "")] = body
            if "see" in step:
                assert_contains(body, step["see"])

        await (self._eventually(call) if step.get("eventually") else call())

    async def _eventually(self, check: Callable[[], Json]) -> None:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    await check()
                except AssertionError:
                    await asyncio.sleep(POLL_S * 5)
                else:
                    return

    async def listed(self, step: Json) -> None:
        """Waits until the list of the service has these lobbies, and no others."""

        async def check() -> None:
            token, fields = self.values["public_token"], {"include_state": True}
            body = await self.service_call("list", fields, token)
            assert_contains(body["lobbies"], step["listed"])

        await self._eventually(check)

    async def fault(self, step: Json) -> None:
        self.proxy.faults.append(Fault(**step["fault"]))

    async def requests(self, step: Json) -> None:
        """Checks the requests on a path: their number of keys, their bodies, and the pauses between them."""
        path = step["requests"]

        def matching() -> list[Any]:
            return [seen for seen in self.proxy.seen if seen.path.endswith(path)]

        await until_met(lambda: len(matching()) >= step.get("at_least", 1))
        seen = matching()
        if "keys" in step:
            assert len({one.key for one in seen}) == step["keys"], seen
            assert all(one.key for one in seen)
        if "count" in step and not self.proxy.is_lossy:
            assert len(seen) == step["count"], seen
        if not self.proxy.is_lossy:
            assert len(seen) <= step.get("at_most", len(seen)), seen
        if "body" in step:
            await until_met(lambda: any(one.body == step["body"] for one in matching()))
        if "pause_s" in step:
            pauses = [b.at_s - a.at_s for a, b in itertools.pairwise(seen)]
            assert max(pauses) >= step["pause_s"], pauses

    async def cancelled(self, step: Json) -> None:
        """Waits until the helper has closed the connection of a request."""
        path = step["cancelled"]
        await until_met(lambda: any(one.endswith(path) for one in self.proxy.cancelled))

    async def log(self, step: Json) -> None:
        await until_met(lambda: any(contains(line, step["log"]) for line in self.driver.logs))

    async def signal(self, step: Json) -> None:
        self.driver.signal(signal.Signals[step["signal"]])

    async def lobby(self, step: Json) -> None:
        for number in range(step.get("count", 1)):
            await self.attach({**step, "lobby": step["lobby"] + str(number)} if number else step)
            if "state_bytes" in step:
                fields = {"state": "x" * step["state_bytes"]}
                token = list(self.values.values())[-1]["lobby_token"]
                await self.service_call("set_state", fields, token)

    async def pending(self, step: Json) -> None:
        assert not self.driver.has_result(step["pending"])

    async def no_requests(self, step: Json) -> None:
        assert not [s for s in self.proxy.seen if s.path.endswith(step["no_requests"])]


STEPS: Final[dict[str, Callable[[World, Json], Json]]] = {
    "do": World.do,
    "finish": World.finish,
    "service": World.service,
    "listed": World.listed,
    "fault": World.fault,
    "requests": World.requests,
    "no_requests": World.no_requests,
    "cancelled": World.cancelled,
    "log": World.log,
    "signal": World.signal,
    "lobby": World.lobby,
    "pending": World.pending,
}


async def until_met(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(POLL_S)


def contains(value: Json, expected: Json) -> bool:
    """Returns whether a value has everything that is expected. Objects can have more fields.

    `"*"` stands for any value that is not empty. A text that begins with `^` is a pattern.
    `{"length": n}` stands for any list of n values.
    """
    if isinstance(expected, dict):
        if isinstance(value, list):
            return bool(len(value) == expected["length"])
        return isinstance(value, dict) and all(
            name in value and contains(value[name], one) for name, one in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(map(contains, value, expected))
        )
    if expected == "*":
        return bool(value)
    if isinstance(expected, str) and expected.startswith("^"):
        return isinstance(value, str) and bool(re.match(expected, value))
    return bool(value == expected)


def assert_contains(value: Json, expected: Json) -> None:
    assert contains(value, expected), f"{value!r} instead of {expected!r}"


async def run_case(
    name: str, developer: Developer, game: Json, command: Sequence[str], is_lossy: bool
) -> None:
    """Runs one case. Raises AssertionError if the helper does not behave as the case says."""
    async with LossyProxy(developer.full_service.ready["http"], is_lossy) as proxy:
        driver = await Driver.start(command)
        world = World(developer, game, proxy, driver)
        try:
            await world.run(CASES[name])
        finally:
            await driver.close()
            await world.close()
        assert not [*unknown_to_oldest_service(proxy.seen)]


def unknown_to_oldest_service(requests: Iterable[Seen]) -> Iterator[Seen]:
    """Returns the requests that the oldest service of the helpers' table does not know."""
    document = _oldest_openapi()
    for seen in requests:
        paths = (path for path in document["paths"] if _matches(path, seen.path))
        operation = document["paths"].get(next(paths, None), {}).get(seen.method.lower())
        if operation is None:
            yield seen
        elif seen.body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            # The state of a lobby is any JSON.
            name = schema.get("$ref", "").rpartition("/")[2]
            message = document["components"]["schemas"].get(name)
            if message and not seen.body.keys() <= message["properties"].keys():
                yield seen


@functools.cache
def _oldest_openapi() -> Json:
    return stored_openapi()


def _matches(template: str, path: str) -> bool:
    parts, found = template.split("/"), path.split("/")
    pairs = zip(parts, found, strict=False)
    return len(parts) == len(found) and all(
        part == name or part.startswith("{") for part, name in pairs
    )
