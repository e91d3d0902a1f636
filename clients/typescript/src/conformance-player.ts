/** Commands of the conformance driver for players. They run in Node and in browsers. */

import { HostingError, Matchmaker, websocketUrl, type Json, type Reservation } from "./player.js";

export type Commands = Record<string, (id: string, fields: Json, signal: AbortSignal) => unknown>;

let matchmaker: Matchmaker;
const reservations = new Map<string, Reservation>();
const controllers = new Map<string, AbortController>();

function camelCase(fields: Json): Json {
  const names = Object.keys(fields).map((name) => [name.replace(/_[a-z]/g, (two) => two.slice(1).toUpperCase()), fields[name]]);
  return Object.fromEntries(names);
}

export function snakeCase(value: Json): Json {
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

export const playerCommands: Commands = {
  open_player: (_, { api_url, token, timeout_ms }) => void (matchmaker = new Matchmaker(api_url, token, timeout_ms)),
  find: (id, { game_modes, ...rest }, signal) => reserved(id, matchmaker.find(game_modes, { ...camelCase(rest), signal })),
  join: (id, { lobby_id, ...rest }, signal) => reserved(id, matchmaker.join(lobby_id, { ...camelCase(rest), signal })),
  create: (id, { game_mode, ...rest }, signal) => reserved(id, matchmaker.create(game_mode, { ...camelCase(rest), signal })),
  rejoin: (id, { of }, signal) => reserved(id, matchmaker.rejoin(reservations.get(of)!, { signal })),
  list: async (_, { include_state }, signal) => snakeCase(await matchmaker.listLobbies({ includeState: include_state, signal })),
  cancel: (_, { of }) => controllers.get(of)!.abort(),
};

/** Runs the command of one line, and gives its result to `send`. */
export async function run(commands: Commands, line: string, send: (answer: string) => void): Promise<void> {
  const { id, do: name, with: fields = {} } = JSON.parse(line);
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
  send(JSON.stringify(answer));
}
