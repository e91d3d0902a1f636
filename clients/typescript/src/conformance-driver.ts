/** Conformance driver of the TypeScript helper: see `conformance/README.md`. */

import { createInterface } from "node:readline";
import { HostingError, Matchmaker, websocketUrl, type Json, type Reservation } from "./player.js";
import { LobbyServer, log, type Player } from "./server.js";

let matchmaker: Matchmaker;
let server: LobbyServer;
const reservations = new Map<string, Reservation>();
const players = new Map<string, Player>();
const controllers = new Map<string, AbortController>();

function camelCase(fields: Json): Json {
  const names = Object.keys(fields).map((name) => [name.replace(/_[a-z]/g, (two) => two.slice(1).toUpperCase()), fields[name]]);
  return Object.fromEntries(names);
}

function snakeCase(value: Json): Json {
  if (Array.isArray(value)) return value.map(snakeCase);
  if (typeof value !== "object" || value === null) return value;
  const names = Object.keys(value).map((name) => [name.replace(/[A-Z]/g, (one) => "_" + one.toLowerCase()), snakeCase(value[name])]);
  return Object.fromEntries(names);
}

async function reserved(id: string, waiting: Promise<Reservation>): Promise<Json> {
  const reservation = await waiting;
  reservations.set(id, reservation);
  const hasPort = Object.values(reservation.ports)[0]?.port != null;
  return { ...snakeCase(reservation), websocket_url: hasPort ? websocketUrl(reservation) : "" };
}

const commands: Record<string, (id: string, fields: Json, signal: AbortSignal) => unknown> = {
  open_player: (_, { api_url, token, timeout_ms }) => void (matchmaker = new Matchmaker(api_url, token, timeout_ms)),
  find: (id, { game_modes, ...rest }, signal) => reserved(id, matchmaker.find(game_modes, { ...camelCase(rest), signal })),
  join: (id, { lobby_id, ...rest }, signal) => reserved(id, matchmaker.join(lobby_id, { ...camelCase(rest), signal })),
  create: (id, { game_mode, ...rest }, signal) => reserved(id, matchmaker.create(game_mode, { ...camelCase(rest), signal })),
  rejoin: (id, { of }, signal) => reserved(id, matchmaker.rejoin(reservations.get(of)!, { signal })),
  list: async (_, { include_state }, signal) => snakeCase(await matchmaker.listLobbies({ includeState: include_state, signal })),
  open_server: (_, { environment, heartbeat_ms }) => {
    server = new LobbyServer(environment, heartbeat_ms);
    const { isLocal, lobbyId, gameMode, regionId, maxPlayers, tags, config } = server;
    const info = snakeCase({ isLocal, lobbyId, gameMode, regionId, maxPlayers });
    return { ...info, tags, config, port: server.port(), game_port: server.port("game-udp") };
  },
  close_server: () => server.close(),
  ready: () => server.ready(),
  stopping: () => server.stopping(),
  drained: (_, { timeout_ms }) => server.drained(timeout_ms),
  enter: async (id, { token, hold_ms }, signal) => void players.set(id, await server.player(token, { holdMs: hold_ms, signal })),
  leave: (_, { of }) => players.get(of)!.leave(),
  set_state: (_, { value }) => server.setState(value),
  set_closed: (_, { is_closed }) => server.setClosed(is_closed),
  log: (_, { message, fields }) => log(message, fields),
  cancel: (_, { of }) => controllers.get(of)!.abort(),
};

async function run(id: string, name: string, fields: Json): Promise<void> {
  const controller = new AbortController();
  controllers.set(id, controller);
  const answer: Json = { id };
  try {
    answer.ok = (await commands[name]!(id, fields, controller.signal)) ?? null;
  } catch (error) {
    if (error instanceof HostingError) {
      const { code, status, detail, rayId, errors, metadata } = error;
      answer.error = { code, status, detail, ray_id: rayId, errors, metadata };
    } else if (controller.signal.aborted) {
      answer.error = { code: "CANCELLED" };
    } else {
      answer.error = { code: "INVALID", detail: (error as Error).message };
    }
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  void run(command.id, command.do, command.with ?? {});
}
