"""Load from players, lobby servers and operators over both transports. Each response is checked
against the ledger.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from tests.faults.ledger import Ledger, Lobby, Ticket
from tests.support.data_plane_clients import Fields, PlaneClient, ResponseLost, TransportResponse

_NO_FREE_SLOT = frozenset(
    {"MATCHMAKER_LOBBY_FULL", "MATCHMAKER_NO_AVAILABLE_LOBBIES", "MATCHMAKER_LOBBY_CLOSED"}
)
_AWAY = frozenset({"SHUTTING_DOWN", "OVERLOADED"})


class LoadRun:
    def __init__(
        self,
        clients: Sequence[PlaneClient],
        client_token: str,
        operator_token: str,
        *,
        seed: int,
        ttl_s: float,
        namespace: tuple[str, str],
        miss_chance: float = 0.02,
        state_bytes: int = 0,
    ) -> None:
        self.clients = clients
        self.client_token = client_token
        self.operator_token = operator_token
        self.random = random.Random(seed)
        self.ttl_s = ttl_s
        self.game, self.namespace = namespace
        self.miss_chance = miss_chance
        self.state_bytes = state_bytes
        """Padding of lobby states. Large states make the journal grow fast."""
        self.ledger = Ledger()
        self.is_over = False
        self.is_up = asyncio.Event()
        self.is_up.set()

    def new_key(self) -> str:
        return str(UUID(int=self.random.getrandbits(128)))

    async def pause(self, longest_s: float) -> None:
        await asyncio.sleep(self.random.random() * longest_s)

    async def linger(self) -> None:
        """Rarely waits, because most players must have a pending request when the service is
        killed.
        """
        if self.random.random() < 0.1:
            await self.pause(0.3)

    async def ask(
        self, operation: str, fields: Fields, token: str, key: str | None
    ) -> TransportResponse:
        answer = await self.random.choice(self.clients).call(
            operation, fields, token=token, key=key
        )
        self.ledger.counts[f"{answer.transport} answers"] += 1
        if answer.code in _AWAY:
            raise ResponseLost(answer.code)
        return answer

    async def insist(
        self, operation: str, fields: Fields, token: str, key: str | None = None
    ) -> tuple[TransportResponse, int]:
        lost_count = 0
        while True:
            await self.is_up.wait()
            try:
                return await self.ask(operation, fields, token, key), lost_count
            except ResponseLost:
                lost_count += 1
                self.ledger.counts["lost answers"] += 1
                self.ledger.counts[f"lost {operation}"] += 1
                await asyncio.sleep(0.02)

    async def attach(self, mode: str, limit: int) -> Lobby:
        fields = {
            "game_id": self.game,
            "namespace_id": self.namespace,
            "game_mode": mode,
            "ports": {"game": {"address": "127.0.0.1", "port": 12000}},
        }
        answer, _ = await self.insist("attach", fields, self.operator_token, self.new_key())
        assert answer.code == "OK", answer
        lobby = Lobby(answer.body["lobby_id"], answer.body["lobby_token"], limit)
        self.ledger.lobbies[lobby.id] = lobby
        answer, _ = await self.insist("ready", {}, lobby.token)
        assert answer.code == "OK", answer
        return lobby


class Player:
    def __init__(self, load_run: LoadRun, mode: str, lobbies: Sequence[Lobby]) -> None:
        self.load_run = load_run
        self.mode = mode
        self.lobbies = lobbies

    async def play(self) -> None:
        async with asyncio.TaskGroup() as missing:
            while not self.load_run.is_over:
                tickets = await self._enter()
                for ticket in list(tickets):
                    if self.load_run.random.random() < self.load_run.miss_chance:
                        tickets.remove(ticket)
                        missing.create_task(self._let_expire(ticket))
                await asyncio.gather(*(self._use(ticket) for ticket in tickets))

    async def _enter(self) -> list[Ticket]:
        load_run, chance = self.load_run, self.load_run.random
        fields: dict[str, object] = {}
        if chance.random() < 0.2:
            fields["party_size"] = chance.randint(2, 4)
        if chance.random() < 0.5:
            operation, fields = "find", {**fields, "game_modes": [self.mode]}
        else:
            operation, fields = "join", {**fields, "lobby_id": chance.choice(self.lobbies).id}
        key = load_run.new_key() if chance.random() < 0.7 else None
        asked_at = time.monotonic()
        if key is None:
            try:
                answer = await load_run.ask(operation, fields, load_run.client_token, None)
            except ResponseLost:
                load_run.ledger.lost(load_run.ttl_s)
                await load_run.is_up.wait()
                return []
        else:
            answer, _ = await load_run.insist(operation, fields, load_run.client_token, key)
        if answer.code != "OK":
            assert answer.code in _NO_FREE_SLOT, answer
            return []
        tickets = load_run.ledger.record(answer.tokens, answer.lobby_id, load_run.ttl_s, asked_at)
        assert len(tickets) == fields.get("party_size", 1)
        if key is not None and chance.random() < 0.1:
            again, _ = await load_run.insist(operation, fields, load_run.client_token, key)
            assert again.tokens == answer.tokens, "one key, two answers"
        return tickets

    async def _use(self, ticket: Ticket) -> None:
        load_run, chance = self.load_run, self.load_run.random
        await load_run.linger()
        server = load_run.ledger.lobbies[ticket.lobby_id].token
        key = load_run.new_key() if chance.random() < 0.7 else None
        body = {"player_token": ticket.token}
        ticket.connect_asked_at = time.monotonic()
        answer, lost_count = await load_run.insist("connected", body, server, key)
        load_run.ledger.check_connected(
            ticket, answer.code, is_repeat=lost_count > 0, has_key=key is not None
        )
        if ticket.connected_at is None:
            return
        again, _ = await load_run.insist("connected", body, server, load_run.new_key())
        assert again.code == "PLAYER_TOKEN_CONSUMED", again
        await load_run.linger()
        await self._leave(ticket)

    async def _let_expire(self, ticket: Ticket) -> None:
        load_run = self.load_run
        server = load_run.ledger.lobbies[ticket.lobby_id].token
        await asyncio.sleep(ticket.answered_at + ticket.ttl_s + 0.1 - time.monotonic())
        ticket.connect_asked_at = time.monotonic()
        answer, _ = await load_run.insist("connected", {"player_token": ticket.token}, server)
        assert answer.code == "PLAYER_TOKEN_EXPIRED", answer
        load_run.ledger.counts["expired"] += 1

    async def _leave(self, ticket: Ticket) -> None:
        load_run, chance = self.load_run, self.load_run.random
        server = load_run.ledger.lobbies[ticket.lobby_id].token
        body: dict[str, object] = {"player_token": ticket.token}
        hold_ms = chance.choice((500, 60_000)) if chance.random() < 0.1 else None
        if hold_ms is not None:
            body["hold_ms"] = hold_ms
        ticket.freed_at = time.monotonic()
        key = load_run.new_key() if chance.random() < 0.5 else None
        answer, _ = await load_run.insist("disconnected", body, server, key)
        assert answer.code == "OK", answer
        load_run.ledger.counts["disconnected"] += 1
        if hold_ms == 60_000:
            await self._reconnect(ticket)

    async def _reconnect(self, ticket: Ticket) -> None:
        """Checks that a kept slot accepts its player even if the lobby is full or closed."""
        load_run = self.load_run
        body = {"lobby_id": ticket.lobby_id, "rejoin_token": ticket.token}
        asked_at = time.monotonic()
        answer, _ = await load_run.insist("join", body, load_run.client_token, load_run.new_key())
        assert answer.code == "OK", answer
        tickets = load_run.ledger.record(answer.tokens, ticket.lobby_id, load_run.ttl_s, asked_at)
        load_run.ledger.counts["rejoined"] += 1
        await self._use(tickets[0])


class Server:
    def __init__(self, load_run: LoadRun, lobby: Lobby) -> None:
        self.load_run = load_run
        self.lobby = lobby

    async def serve(self) -> None:
        load_run, token = self.load_run, self.lobby.token
        number = 0
        while not load_run.is_over:
            number += 1
            state = json.dumps({"number": number, "padding": "." * load_run.state_bytes}).encode()
            answer, _ = await load_run.insist("set_state", {"state": state}, token)
            assert answer.code == "OK", answer
            answer, _ = await load_run.insist("get_state", {"lobby_id": self.lobby.id}, token)
            assert answer.body == state, f"{answer.body[:40]!r} instead of {state[:40]!r}"
            answer, _ = await load_run.insist("ready", {}, token)
            assert answer.code == "OK", answer
            is_closed = load_run.random.random() < 0.1
            if is_closed:
                await self._close(True)
                await load_run.pause(0.1)
                await self._close(False)
            await load_run.pause(0.2)

    async def _close(self, is_closed: bool) -> None:
        answer, _ = await self.load_run.insist("closed", {"is_closed": is_closed}, self.lobby.token)
        assert answer.code == "OK", answer


class Operator:
    def __init__(self, load_run: LoadRun, mode: str, limit: int) -> None:
        self.load_run = load_run
        self.mode = mode
        self.limit = limit

    async def operate(self) -> None:
        load_run = self.load_run
        while not load_run.is_over:
            lobby = await load_run.attach(self.mode, self.limit)
            body = {"lobby_id": lobby.id}
            asked_at = time.monotonic()
            answer, _ = await load_run.insist(
                "join", body, load_run.client_token, load_run.new_key()
            )
            assert answer.code == "OK", answer
            (ticket,) = load_run.ledger.record(answer.tokens, lobby.id, load_run.ttl_s, asked_at)
            await load_run.pause(0.2)
            ticket.freed_at = time.monotonic()
            path = {"game_id": load_run.game, "lobby_id": lobby.id}
            answer, lost_count = await load_run.insist("detach", path, load_run.operator_token)
            assert answer.code == "OK", answer
            assert lost_count or answer.body.get("did_remove") is True, answer
            await self._check_ended(lobby, ticket)
            load_run.ledger.counts["detached"] += 1

    async def _check_ended(self, lobby: Lobby, ticket: Ticket) -> None:
        load_run = self.load_run
        body = {"player_token": ticket.token}
        expected = {
            "connected": (body, lobby.token, "PLAYER_REMOVED"),
            "ready": ({}, lobby.token, "MATCHMAKER_LOBBY_STOPPED"),
            "join": ({"lobby_id": lobby.id}, load_run.client_token, "MATCHMAKER_LOBBY_STOPPED"),
        }
        for operation, (fields, token, code) in expected.items():
            answer, _ = await load_run.insist(operation, fields, token)
            assert answer.code == code, answer
        path = {"game_id": load_run.game, "lobby_id": lobby.id}
        answer, _ = await load_run.insist("detach", path, load_run.operator_token)
        assert answer.code == "OK", answer
        assert not answer.body.get("did_remove"), answer


async def check_no_slot_is_leaked(
    load_run: LoadRun, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Checks that each lobby accepts exactly its limit of players after all deadlines."""
    for ticket in load_run.ledger.still_connected():
        ticket.freed_at = time.monotonic()
        server = load_run.ledger.lobbies[ticket.lobby_id].token
        await load_run.insist("disconnected", {"player_token": ticket.token}, server)
    await sleep(max(0.0, load_run.ledger.clear_at() - time.monotonic()))
    for lobby in load_run.ledger.lobbies.values():
        body = {"lobby_id": lobby.id}
        first, _ = await load_run.insist("join", body, load_run.client_token)
        if first.code == "MATCHMAKER_LOBBY_STOPPED":
            continue
        answers = [first] + [
            (await load_run.insist("join", body, load_run.client_token))[0]
            for _ in range(lobby.limit)
        ]
        codes = [answer.code for answer in answers]
        assert codes == ["OK"] * lobby.limit + ["MATCHMAKER_LOBBY_FULL"], codes
        asked_at = time.monotonic()
        tokens = [token for answer in answers[:-1] for token in answer.tokens]
        load_run.ledger.record(tokens, lobby.id, load_run.ttl_s, asked_at)
