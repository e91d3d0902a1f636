/**
 * Helper of the hosting service for players: find, join, create, rejoin and list.
 *
 * One file for browsers and Node, without dependencies.
 */

// The service waits up to 45 s for a starting lobby.
const MATCH_ATTEMPT_MS = 60_000;
const PAUSE_FIRST_MS = 100;
const PAUSE_LONGEST_MS = 2_000;
const TEMPORARY_STATUSES = new Set([0, 408, 500, 502, 503, 504]);

/** A JSON value of the service. */
export type Json = any;

/**
 * A call failed. `code` is stable: see the error codes of the service.
 *
 * `NO_RESPONSE` with status 0 means that the service could not be reached or did not answer in time.
 */
export class HostingError extends Error {
  readonly rayId: string;
  readonly metadata: Record<string, string>;
  readonly errors: Json[];

  constructor(
    readonly code: string,
    readonly status: number,
    readonly detail: string,
    problem: Json = {},
    readonly retryAfterMs = 0,
  ) {
    super(`${code}: ${detail}`);
    this.name = "HostingError";
    this.rayId = problem?.ray_id ?? "";
    this.metadata = problem?.metadata ?? {};
    this.errors = problem?.errors ?? [];
  }

  /** True if the same call can succeed later. Its outcome is then unknown. */
  get isTemporary(): boolean {
    return TEMPORARY_STATUSES.has(this.status) || this.code === "RATE_LIMITED";
  }
}

/** Player address of one port. `port` is null for a range. */
export interface Port {
  hostname: string;
  port: number | null;
  portRange: [number, number] | null;
  isTls: boolean;
}

/** A slot in a lobby. Connect to one of `ports` and send `playerToken` there. */
export interface Reservation {
  lobbyId: string;
  regionId: string;
  ports: Record<string, Port>;
  playerToken: string;
  playerTokens: string[];
}

/** An entry of the lobby list. */
export interface Lobby {
  lobbyId: string;
  gameMode: string;
  regionId: string;
  playerCount: number;
  maxPlayers: number;
  maxPlayersDirect: number;
  maxPlayersParty: number;
  state: Json;
}

export interface CallOptions {
  /** Abort it to give up the slots of a waiting call. */
  signal?: AbortSignal;
}

export interface JoinOptions extends CallOptions {
  partySize?: number;
  eventChannels?: string[];
  captcha?: Json;
  verificationData?: Json;
  clientAddress?: string;
}

export interface FindOptions extends JoinOptions {
  regions?: string[];
  tags?: Record<string, string>;
  maxPlayers?: number;
  preventAutoCreateLobby?: boolean;
}

export interface CreateOptions extends JoinOptions {
  region?: string;
  publicity?: "public" | "private";
  tags?: Record<string, string>;
  maxPlayers?: number;
  lobbyConfig?: Json;
}

/** Calls of a player with a public token. Each call is repeated under one idempotency key for at most `timeoutMs`. */
export class Matchmaker {
  readonly #http: Http;
  readonly #timeoutMs: number;

  constructor(apiUrl: string, token: string, timeoutMs = 120_000) {
    this.#http = new Http(apiUrl, token);
    this.#timeoutMs = timeoutMs;
  }

  /** Reserves a slot in a lobby of one of these game modes. */
  find(gameModes: string[], options: FindOptions = {}): Promise<Reservation> {
    return this.#reserve("find", { game_modes: gameModes }, options);
  }

  /** Reserves a slot in this lobby. */
  join(lobbyId: string, options: JoinOptions = {}): Promise<Reservation> {
    return this.#reserve("join", { lobby_id: lobbyId }, options);
  }

  /** Starts a lobby and reserves a slot in it. */
  create(gameMode: string, options: CreateOptions = {}): Promise<Reservation> {
    return this.#reserve("create", { game_mode: gameMode }, options);
  }

  /**
   * Reserves the slot again that the server keeps after a lost connection.
   *
   * Without a kept slot it is a normal join.
   */
  rejoin(reservation: Reservation, options: CallOptions = {}): Promise<Reservation> {
    const fields = { lobby_id: reservation.lobbyId, rejoin_token: reservation.playerToken };
    return this.#reserve("join", fields, options);
  }

  /** Returns all public, open lobbies, oldest first. */
  async listLobbies(options: CallOptions & { includeState?: boolean } = {}): Promise<Lobby[]> {
    const lobbies: Lobby[] = [];
    const query = new URLSearchParams(options.includeState ? { include_state: "true" } : {});
    for (;;) {
      const path = `lobbies/list?${query}`;
      const page = await this.#http.call("GET", path, undefined, MATCH_ATTEMPT_MS, this.#timeoutMs, options.signal);
      lobbies.push(...page.lobbies.map(lobbyOf));
      if (!page.cursor) return lobbies;
      query.set("cursor", page.cursor);
    }
  }

  async #reserve(operation: string, fields: Json, options: CallOptions): Promise<Reservation> {
    const { signal, ...rest } = options;
    const body = { ...fields, ...wireNames(rest) };
    const path = `lobbies/${operation}`;
    const answer = await this.#http.call("POST", path, body, MATCH_ATTEMPT_MS, this.#timeoutMs, signal);
    return {
      lobbyId: answer.lobby.lobby_id,
      regionId: answer.lobby.region.region_id,
      ports: Object.fromEntries(Object.entries(answer.ports).map(([name, port]) => [name, portOf(port)])),
      playerToken: answer.player.token,
      playerTokens: (answer.players ?? [answer.player]).map((player: Json) => player.token),
    };
  }
}

/** Returns the address of a WebSocket server, with the player token as query parameter. */
export function websocketUrl(reservation: Reservation, path = "/", portName?: string): string {
  const port = portName ? reservation.ports[portName] : Object.values(reservation.ports)[0];
  if (!port) throw new RangeError(`the lobby has no port ${portName ?? ""}`);
  const host = port.hostname.includes(":") ? `[${port.hostname}]` : port.hostname;
  const query = new URLSearchParams({ token: reservation.playerToken });
  return `${port.isTls ? "wss" : "ws"}://${host}:${port.port}${path}?${query}`;
}

/** Requests to the service. `LobbyServer` uses it too. */
export class Http {
  readonly #base: string;
  readonly #token: string;

  constructor(apiUrl: string, token: string) {
    if (!/^https?:\/\/./.test(apiUrl)) throw new TypeError(`the address ${apiUrl} must begin with http:// or https://`);
    this.#base = apiUrl.replace(/\/+$/, "") + "/matchmaker/";
    this.#token = token;
  }

  /** Repeats a request under one idempotency key until its outcome is known. */
  async call(
    method: string,
    path: string,
    body: Json,
    attemptMs: number,
    totalMs: number,
    signal?: AbortSignal,
  ): Promise<Json> {
    const key = newKey();
    const nextPause = pauses();
    const deadline = performance.now() + totalMs;
    for (;;) {
      const leftMs = Math.max(deadline - performance.now(), 1);
      let pauseMs = nextPause();
      try {
        return await this.attempt(method, path, body, key, Math.min(attemptMs, leftMs), signal);
      } catch (error) {
        if (!(error instanceof HostingError) || !error.isTemporary) throw error;
        pauseMs = Math.max(pauseMs, error.retryAfterMs);
        if (performance.now() + pauseMs >= deadline) throw error;
      }
      await sleep(pauseMs, signal);
    }
  }

  /** Sends one request and returns the JSON of its response. */
  async attempt(
    method: string,
    path: string,
    body: Json,
    key: string,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<Json> {
    signal?.throwIfAborted();
    const controller = new AbortController();
    const abort = () => controller.abort();
    const timer = setTimeout(abort, timeoutMs);
    signal?.addEventListener("abort", abort);
    const headers: Record<string, string> = { Authorization: `Bearer ${this.#token}` };
    if (method !== "GET") {
      headers["Content-Type"] = "application/json";
      headers["Idempotency-Key"] = key;
    }
    let response: Response, answer: Json;
    try {
      const content = body === undefined ? undefined : JSON.stringify(body);
      response = await fetch(this.#base + path, { method, headers, body: content, signal: controller.signal });
      answer = jsonOf(await response.text(), response.ok);
    } catch (error) {
      signal?.throwIfAborted();
      throw new HostingError("NO_RESPONSE", 0, `no valid response: ${(error as Error).cause ?? error}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    }
    if (response.ok) return answer;
    const retryAfter = response.headers.get("retry-after") ?? "";
    const retryAfterMs = /^\d+$/.test(retryAfter) ? Number(retryAfter) * 1000 : 0;
    const { code = "UNKNOWN", detail = "" } = answer ?? {};
    throw new HostingError(code, response.status, detail, answer, retryAfterMs);
  }
}

/** Returns growing pauses with jitter, so that clients do not retry at the same instant. */
export function pauses(): () => number {
  let pauseMs = PAUSE_FIRST_MS;
  return () => {
    const taken = pauseMs * (0.5 + Math.random() / 2);
    pauseMs = Math.min(pauseMs * 2, PAUSE_LONGEST_MS);
    return taken;
  };
}

export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** Returns a random key. `crypto.randomUUID` is absent on pages without TLS. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function jsonOf(text: string, isNeeded: boolean): Json {
  try {
    return JSON.parse(text || "null");
  } catch (error) {
    if (isNeeded) throw error;
    return null;
  }
}

function wireNames(options: object): Json {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(
    entries.map(([name, value]) => [name.replace(/[A-Z]/g, (letter) => "_" + letter.toLowerCase()), value]),
  );
}

function portOf(entry: Json): Port {
  const range = entry.port_range;
  return {
    hostname: entry.hostname,
    port: entry.port ?? null,
    portRange: range ? [range.min, range.max] : null,
    isTls: Boolean(entry.is_tls),
  };
}

function lobbyOf(entry: Json): Lobby {
  return {
    lobbyId: entry.lobby_id,
    gameMode: entry.game_mode_id,
    regionId: entry.region_id,
    playerCount: entry.total_player_count,
    maxPlayers: entry.max_players_normal,
    maxPlayersDirect: entry.max_players_direct,
    maxPlayersParty: entry.max_players_party,
    state: entry.state ?? null,
  };
}
