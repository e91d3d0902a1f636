"""API server of tests: objects with resource versions, watches, and graceful deletion of Pods.

It has the semantics on which the driver depends. A test does the work of the scheduler and of the
nodes with `bind`, `set_status` and `remove`.
"""

from __future__ import annotations

import asyncio
import datetime
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from pyservice.kubernetes.account_rights import REVIEWS
from pyservice.kubernetes.api import Collection, KubernetesApi, Object
from pyservice.kubernetes.cluster_access import ClusterAccess, Credentials

NAMESPACE: Final = "games"
PODS: Final = Collection("pods", NAMESPACE)
NODES: Final = Collection("nodes")
CONFIG_MAPS: Final = Collection("configmaps", NAMESPACE)
ACCOUNT: Final = "system:serviceaccount:hosting:hosting"

_VERBS: Final = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
_FINAL_PHASES: Final = ("Succeeded", "Failed")


class Request(NamedTuple):
    verb: str
    plural: str
    name: str
    body: Object


class _Event(NamedTuple):
    version: int
    path: str
    before: Object | None
    after: Object | None


class _Refused(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiServer:
    def __init__(self) -> None:
        self.url = ""
        self.version = 1_000
        self.objects: dict[str, dict[str, Object]] = {}
        """Objects by path of their collection and name. An object is replaced and never changed."""
        self.requests: list[Request] = []
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and kinds for which the account has no rights."""
        self.token: str | None = None
        """Token that each request needs. None: none."""
        self.pods_max: int | None = None
        """Limit of Pods by a quota."""
        self.webhook_refusal: str | None = None
        """Sentence with which an admission webhook refuses new objects."""
        self.creation_failure: tuple[str, str] | None = None
        """Reason and message of the status 500 that answers each creation."""
        self.is_away = False
        """Whether each request ends without an answer."""
        self.answering = asyncio.Event()
        """Set, unless answers to creations wait."""
        self.answering.set()
        self.loses_answers = False
        """Whether changes are made, and their answers are lost."""
        self.throttled = 0
        """Number of the next requests that are answered with 429."""
        self.clock_ahead_s = 0
        """Difference between its clock and that of the tests."""
        self.is_silent = False
        """Whether watches stay open and send nothing."""
        self.on_change: Callable[[str, Object], None] = lambda path, changed: None
        """Receives each object that was made or changed, with the path of its collection."""
        self._events: list[_Event] = []
        self._compacted = self.version
        self._snapshots: dict[str, list[Object]] = {}
        self._watches: dict[_Watch, None] = {}

    @property
    def watch_count(self) -> int:
        return len(self._watches)

    @property
    def has_sent_all(self) -> bool:
        """Returns whether no change waits to be sent to a watch."""
        return not self.waiting_lines

    @property
    def waiting_lines(self) -> int:
        """Number of changes that wait to be sent to a watch."""
        return sum(watch.lines.qsize() for watch in self._watches)

    def seen(self, verb: str, plural: str = "pods") -> list[Request]:
        return [one for one in self.requests if (one.verb, one.plural) == (verb, plural)]

    # Acts of the scheduler, of nodes, and of people with kubectl.

    def pod(self, name: str) -> Object | None:
        return self.objects.get(PODS.path, {}).get(name)

    @property
    def pods(self) -> dict[str, Object]:
        return self.objects.get(PODS.path, {})

    def bind(self, name: str, node: str) -> None:
        """Binds a Pod to a node, as a scheduler does."""
        condition = {"type": "PodScheduled", "status": "True"}
        self.change(PODS, name, {"spec": {"nodeName": node}, "status": {"conditions": [condition]}})

    def set_status(self, name: str, **status: Any) -> None:
        self.change(PODS, name, {"status": status})

    def run(self, name: str, ip: str, started: str = "2026-11-29T20:00:00Z") -> None:
        """Reports that the game server of a Pod runs, as its node does."""
        state = {"running": {"startedAt": started}}
        self.set_status(
            name,
            phase="Running",
            podIP=ip,
            containerStatuses=[{"name": "game-server", "state": state}],
        )

    def finish(self, name: str, exit_code: int, **terminated: Any) -> None:
        """Reports the end of the game server of a Pod, as its node does.

        Removes a Pod that is being deleted, unless finalizers keep it.
        """
        state = {
            "exitCode": exit_code,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": "2026-11-29T20:00:00Z",
            "finishedAt": "2026-11-29T20:01:00Z",
            **terminated,
        }
        self.set_status(
            name,
            phase="Failed" if exit_code else "Succeeded",
            containerStatuses=[{"name": "game-server", "state": {"terminated": state}}],
        )
        pod = self.pod(name)
        if pod is not None and "deletionTimestamp" in pod["metadata"]:
            self._end_deletion(PODS.path, pod)

    def change(self, collection: Collection, name: str, change: Object) -> None:
        """Merges a change into an object."""
        before = self.objects[collection.path][name]
        self._store(collection.path, _merged(before, change))

    def put(self, collection: Collection, new: Object) -> Object:
        """Stores an object, also one that exists."""
        return self._store(
            collection.path, {**new, "metadata": {"uid": str(uuid.uuid4()), **new["metadata"]}}
        )

    def remove(self, collection: Collection, name: str) -> None:
        """Removes an object at once."""
        self._remove(collection.path, name)

    def compact(self) -> None:
        """Forgets all earlier versions, and the lists that were begun."""
        self._compacted = self.version
        self._events.clear()
        self._snapshots.clear()

    def send_bookmarks(self) -> None:
        line = _line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})
        self.send_to_watches(line)

    def send_to_watches(self, line: bytes | None) -> None:
        for watch in self._watches:
            watch.lines.put_nowait(line)

    def end_watches(self) -> None:
        self.send_to_watches(None)

    def _remove(self, path: str, name: str) -> None:
        before = self.objects[path].pop(name)
        self._tell(path, before, None)

    def _store(self, path: str, new: Object) -> Object:
        name = new["metadata"]["name"]
        before = self.objects.setdefault(path, {}).get(name)
        stored = _merged(new, {"metadata": {"resourceVersion": str(self.version + 1)}})
        self.objects[path][name] = stored
        self._tell(path, before, stored)
        return stored

    def _tell(self, path: str, before: Object | None, after: Object | None) -> None:
        self.version += 1
        event = _Event(self.version, path, before, after)
        self._events.append(event)
        for watch in self._watches:
            watch.offer(event)
        if after is not None:
            asyncio.get_running_loop().call_soon(self.on_change, path, after)

    # The API over HTTP.

    async def set_date(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.clock_ahead_s:
            response.headers["Date"] = formatdate(time.time() + self.clock_ahead_s, usegmt=True)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, name = _split(request.path)
        plural = path.rpartition("/")[2]
        verb = _VERBS.get(request.method) or _read_verb(request, name)
        content = await request.read()
        body = orjson.loads(content) if content else {}
        self.requests.append(Request(verb, plural, name, body))
        if self.is_away:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        try:
            self._admit(request, verb, plural, path)
            if verb == "watch":
                return await self._watch(request, path)
            answer = self._perform(request, verb, path, name, body)
        except _Refused as refused:
            return _refusal(refused, plural)
        if verb == "create":
            await self.answering.wait()
        if self.loses_answers and verb in _VERBS.values():
            assert request.transport is not None
            request.transport.abort()
        return _json_response(answer, 201 if verb == "create" else 200)

    def _admit(self, request: web.Request, verb: str, plural: str, path: str) -> None:
        if self.throttled:
            self.throttled -= 1
            raise _Refused(429, "TooManyRequests", "too many requests, please try again later")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise _Refused(401, "Unauthorized", "Unauthorized")
        if (verb, plural) in self.forbidden:
            where = (
                f' in the namespace "{NAMESPACE}"' if NAMESPACE in path else " at the cluster scope"
            )
            raise _Refused(
                403,
                "Forbidden",
                f'{plural} is forbidden: User "{ACCOUNT}" cannot {verb} resource "{plural}" '
                f'in API group ""{where}',
            )

    def _perform(
        self, request: web.Request, verb: str, path: str, name: str, body: Object
    ) -> Object:
        if verb == "list":
            return self._list(request, path)
        if verb == "create" and path == REVIEWS.path:
            asked = body["spec"]["resourceAttributes"]
            is_allowed = (asked["verb"], asked["resource"]) not in self.forbidden
            return {**body, "status": {"allowed": is_allowed}}
        if verb == "create":
            return self._create(path, body)
        stored = self.objects.get(path, {}).get(name)
        if stored is None:
            plural = path.rpartition("/")[2]
            raise _Refused(404, "NotFound", f'{plural} "{name}" not found')
        if verb == "patch":
            return self._patch(path, stored, body)
        return stored if verb == "get" else self._delete(path, stored, body)

    def _list(self, request: web.Request, path: str) -> Object:
        limit = int(request.query.get("limit", "0")) or None
        token = request.query.get("continue")
        assert "resourceVersion" not in request.query, "a list may not come from the cache"
        if token is None:
            matches = _matcher(request.query.get("labelSelector", ""))
            rest = [one for one in self.objects.get(path, {}).values() if matches(one)]
            version = str(self.version)
        else:
            if token not in self._snapshots:
                raise _Refused(
                    410,
                    "Expired",
                    "The provided continue parameter is too old to display a consistent list result.",
                )
            rest, version = self._snapshots.pop(token), token.partition(":")[0]
        page, rest = rest[:limit], rest[len(rest[:limit]) :]
        metadata: Object = {"resourceVersion": version}
        if rest:
            metadata["continue"] = f"{version}:{uuid.uuid4()}"
            self._snapshots[metadata["continue"]] = rest
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page}

    def _create(self, path: str, body: Object) -> Object:
        name, plural = body["metadata"]["name"], path.rpartition("/")[2]
        if self.webhook_refusal is not None:
            raise _Refused(
                403,
                "Forbidden",
                f'admission webhook "policy.example.com" denied the request: {self.webhook_refusal}',
            )
        if self.creation_failure is not None:
            raise _Refused(500, *self.creation_failure)
        if name in self.objects.get(path, {}):
            raise _Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
        count = len(self.objects.get(path, {}))
        if plural == "pods" and self.pods_max is not None and count >= self.pods_max:
            raise _Refused(
                403,
                "Forbidden",
                f'pods "{name}" is forbidden: exceeded quota: games, requested: pods=1, '
                f"used: pods={count}, limited: pods={self.pods_max}",
            )
        fields: Object = {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        new = {**body, "metadata": {**body["metadata"], **fields}}
        if plural == "pods":
            new["status"] = {"phase": "Pending", "qosClass": "Burstable"}
        return self._store(path, new)

    def _delete(self, path: str, stored: Object, options: Object) -> Object:
        metadata = stored["metadata"]
        _require_uid(stored, options.get("preconditions", {}).get("uid"))
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = stored.get("spec", {}).get("terminationGracePeriodSeconds", 0)
        is_bound = bool(stored.get("spec", {}).get("nodeName"))
        is_over = stored.get("status", {}).get("phase") in _FINAL_PHASES
        if not is_bound or is_over or grace == 0:
            return self._end_deletion(path, stored)
        earlier = metadata.get("deletionGracePeriodSeconds")
        if earlier is not None and earlier <= grace:
            return stored
        deleted = {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": grace}
        return self._store(path, _merged(stored, {"metadata": deleted}))

    def _end_deletion(self, path: str, stored: Object) -> Object:
        """Removes an object. While it has finalizers, it stays with no time left."""
        metadata = stored["metadata"]
        if metadata.get("finalizers"):
            deleted = {"deletionTimestamp": _now(), "deletionGracePeriodSeconds": 0}
            return self._store(path, _merged(stored, {"metadata": deleted}))
        self._remove(path, metadata["name"])
        return stored

    def _patch(self, path: str, stored: Object, change: Object) -> Object:
        changed = _merged(stored, change)
        earlier, metadata = stored["metadata"], changed["metadata"]
        name, finalizers = metadata["name"], set(metadata.get("finalizers") or ())
        if metadata["uid"] != earlier["uid"]:
            raise _Refused(
                422, "Invalid", f'Pod "{name}" is invalid: metadata.uid: field is immutable'
            )
        if "deletionTimestamp" in metadata:
            if not finalizers <= set(earlier.get("finalizers") or ()):
                raise _Refused(
                    422,
                    "Invalid",
                    f'Pod "{name}" is invalid: metadata.finalizers: Forbidden: no new finalizers '
                    "can be added if the object is being deleted",
                )
            if not finalizers and metadata["deletionGracePeriodSeconds"] == 0:
                self._remove(path, name)
                return changed
        return self._store(path, changed)

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        after = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if after < self._compacted:
            message = f"too old resource version: {after} ({self._compacted})"
            await response.write(_line("ERROR", _status(410, "Expired", message)))
            return response
        watch = _Watch(path, _matcher(request.query.get("labelSelector", "")), asyncio.Queue())
        for event in self._events:
            if event.version > after:
                watch.offer(event)
        self._watches[watch] = None
        try:
            while (line := await watch.lines.get()) is not None:
                if not self.is_silent:
                    await response.write(line)
        finally:
            del self._watches[watch]
        return response


class _Watch:
    def __init__(
        self, path: str, matches: Callable[[Object], bool], lines: asyncio.Queue[bytes | None]
    ) -> None:
        self.path = path
        self.matches = matches
        self.lines = lines

    def offer(self, event: _Event) -> None:
        """Sends a change, as one of the objects with the labels of this watch."""
        if event.path != self.path:
            return
        was_seen = event.before is not None and self.matches(event.before)
        is_seen = event.after is not None and self.matches(event.after)
        if is_seen and event.after is not None:
            self.lines.put_nowait(_line("MODIFIED" if was_seen else "ADDED", event.after))
        elif was_seen and event.before is not None:
            # As the real one: the last state, with the version of the change.
            version = {"metadata": {"resourceVersion": str(event.version)}}
            self.lines.put_nowait(_line("DELETED", _merged(event.before, version)))


def _line(kind: str, content: Object) -> bytes:
    return orjson.dumps({"type": kind, "object": content}, option=orjson.OPT_APPEND_NEWLINE)


def _status(status: int, reason: str, message: str, plural: str = "") -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": {"kind": plural},
        "code": status,
    }


def _refusal(refused: _Refused, plural: str) -> web.Response:
    content = _status(refused.status, refused.reason, str(refused), plural)
    headers = {"Retry-After": "1"} if refused.status == 429 else {}
    return _json_response(content, refused.status, headers)


def _json_response(
    content: Object, status: int, headers: Mapping[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=orjson.dumps(content), status=status, headers=headers, content_type="application/json"
    )


def _require_uid(stored: Object, uid: str | None) -> None:
    metadata = stored["metadata"]
    if uid is not None and uid != metadata["uid"]:
        raise _Refused(
            409,
            "Conflict",
            f'Operation cannot be fulfilled on pods "{metadata["name"]}": the UID in the '
            f"precondition ({uid}) does not match the UID in record ({metadata['uid']}).",
        )


def _read_verb(request: web.Request, name: str) -> str:
    if request.query.get("watch"):
        return "watch"
    return "get" if name else "list"


def _split(path: str) -> tuple[str, str]:
    """Returns the path of a collection, and the name of an object or nothing."""
    words = path.strip("/").split("/")
    prefix = 2 if words[0] == "api" else 3
    length = prefix + (3 if words[prefix] == "namespaces" else 1)
    return "/" + "/".join(words[:length]), "/".join(words[length:])


def _matcher(selector: str) -> Callable[[Object], bool]:
    wanted = dict(term.split("=") for term in selector.split(",") if term)
    return lambda one: wanted.items() <= one["metadata"].get("labels", {}).items()


def _merged(before: Object, change: Object) -> Object:
    """Returns an object with a strategic merge patch. Of lists, it knows finalizers.

    Shares all unchanged parts, because no object changes.
    """
    merged = {**before}
    for name, value in change.items():
        directive, _, of_list = name.partition("/")
        if directive == "$deleteFromPrimitiveList":
            merged[of_list] = [one for one in merged.get(of_list) or () if one not in value]
        elif name == "finalizers":
            merged[name] = list(dict.fromkeys([*(merged.get(name) or ()), *value]))
        elif value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and isinstance(merged.get(name), dict):
            merged[name] = _merged(merged[name], value)
        else:
            merged[name] = value
    return merged


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@asynccontextmanager
async def open_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    server = ApiServer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.answer)
    application.on_response_prepare.append(server.set_date)
    # Else a watch would stay open after its client has gone.
    runner = web.AppRunner(
        application, access_log=None, handler_cancellation=True, shutdown_timeout=0.0
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    [(host, port)] = runner.addresses
    server.url = f"{'https' if tls else 'http'}://{host}:{port}"
    try:
        yield server
    finally:
        server.end_watches()
        await runner.cleanup()


@asynccontextmanager
async def open_api(server: ApiServer, **options: Any) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(ClusterAccess(server.url, Credentials()), **options) as api:
        yield api
