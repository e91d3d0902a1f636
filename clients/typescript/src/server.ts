/** Helper of the hosting service for lobby servers in Node. It needs `player.ts` beside it, and no dependencies. */

import { HostingError, Http, newKey, pauses, sleep, type Json } from "./player.js";

// `ready` waits up to 10 s for the ports.
const ATTEMPT_MS = 15_000;
const CONFIRM_ATTEMPT_MS = 4_000;
// The service expects `disconnected` if `connected` takes longer.
const CONFIRM_TOTAL_MS = 10_000;
const RELEASE_TOTAL_MS = 60_000;
const CLOSE_TOTAL_MS = 5_000;
const STATE_INTERVAL_MS = 1_000;
const LOBBY_ENDED_STATUSES = new Set([401, 403, 404, 410]);

export interface PlayerOptions {
  /** Time for which the service keeps the slot after the session. */
  holdMs?: number;
  signal?: AbortSignal;
}

/** The connection of the library `ws`. */
export interface WebSocketLike {
  on(event: "close", listener: () => void): unknown;
  close(code: number, reason: string): void;
}

/**
 * The game server of a lobby. Heartbeats run until `close`, and SIGTERM ends the lobby.
 *
 * Without a service it is local: it accepts every token and sends nothing.
 */
export class LobbyServer {
  readonly isLocal: boolean;
  readonly lobbyId: string;
  readonly gameMode: string;
  readonly regionId: string;
  readonly maxPlayers: number;
  readonly tags: Json;
  readonly config: Json;
  stopReason = "";

  readonly #environment: Record<string, string | undefined>;
  readonly #http: Http | null;
  readonly #heartbeatMs: number;
  readonly #confirming = new Set<string>();
  readonly #players = new Set<string>();
  readonly #releases = new Map<string, Promise<void>>();
  readonly #stopping = deferred();
  readonly #answered = deferred();
  readonly #closing = new AbortController();
  #changed = deferred();
  #left = deferred();
  readonly #running: Promise<void>;
  #isFinishing = false;
  #isWantedReady = false;
  #isReady = false;
  #isDeclared = false;
  #isClosed: boolean | undefined;
  #sentClosed: boolean | undefined;
  #state: Json;
  #sentState: Json;
  #heartbeatDue = 0;
  #stateDue = 0;
  #error: HostingError | undefined;

  constructor(environment: Record<string, string | undefined>, heartbeatMs = 3_000) {
    const url = environment.HOSTING_API_URL ?? "";
    const token = environment.HOSTING_LOBBY_TOKEN ?? "";
    if (Boolean(url) !== Boolean(token)) {
      const missing = url ? "HOSTING_LOBBY_TOKEN" : "HOSTING_API_URL";
      throw new TypeError(`${missing} is not set: set both variables, or none to run locally`);
    }
    this.#environment = environment;
    this.#heartbeatMs = heartbeatMs;
    this.#http = url ? new Http(url, token) : null;
    this.isLocal = !url;
    this.lobbyId = environment.HOSTING_LOBBY_ID ?? "";
    this.gameMode = environment.HOSTING_GAME_MODE ?? "";
    this.regionId = environment.HOSTING_REGION_ID ?? "";
    this.maxPlayers = Number(environment.HOSTING_MAX_PLAYERS ?? 0);
    this.tags = JSON.parse(environment.HOSTING_LOBBY_TAGS ?? "{}");
    this.config = JSON.parse(environment.HOSTING_LOBBY_CONFIG ?? "null");
    process.on("SIGTERM", this.#onSigterm);
    process.on("SIGINT", this.#onSigint);
    this.#running = this.#run();
  }

  /** Returns the server of the lobby in the HOSTING_* variables. Without them it is local. */
  static fromEnvironment(environment: Record<string, string | undefined> = process.env): LobbyServer {
    return new LobbyServer(environment);
  }

  /** Returns the number to bind for the port with this name, or for the only port. */
  port(name = "", local = 7777): number {
    const variable = name ? "PORT_" + name.toUpperCase().replaceAll("-", "_") : "PORT";
    return Number(this.#environment[variable] ?? local);
  }

  /** Address on which the server listens. */
  get bindAddress(): string {
    return this.#environment.HOSTING_BIND_ADDRESS ?? "127.0.0.1";
  }

  get isStopping(): boolean {
    return this.stopReason !== "";
  }

  /** Lets players in. Resolves when the service has confirmed it, or when the lobby stops. */
  async ready(): Promise<void> {
    if (this.isLocal) {
      log("ready", { mode: "local: every token is valid" });
      return;
    }
    this.#isWantedReady = true;
    this.#isDeclared = false;
    this.#changed.resolve();
    await this.#answered.promise;
    if (this.#error && !this.#isReady) throw this.#error;
  }

  /** Closes the lobby and resolves `stopping`, as SIGTERM does. */
  stop(reason = "stop"): void {
    if (this.isStopping) return;
    log("stopping", { reason });
    this.stopReason = reason;
    this.#isClosed = true;
    // A second Ctrl-C ends the process at once. A second SIGTERM does not: it can come from a forwarding script.
    process.off("SIGINT", this.#onSigint);
    for (const event of [this.#stopping, this.#answered, this.#changed]) event.resolve();
  }

  /** Resolves when the lobby has to end. */
  async stopping(): Promise<string> {
    await this.#stopping.promise;
    return this.stopReason;
  }

  /**
   * Waits until the lobby has to end, and then until all players have left, at most `timeoutMs`.
   *
   * The service sends SIGKILL 30 s after SIGTERM.
   */
  async drained(timeoutMs = 10_000): Promise<void> {
    await this.stopping();
    const deadline = performance.now() + timeoutMs;
    while (this.#players.size && performance.now() < deadline) {
      this.#left = deferred();
      await within(this.#left.promise, deadline - performance.now());
    }
  }

  /** Confirms a player. On HostingError close the connection. Release the slot with `await using` or `leave`. */
  async player(token: string, { holdMs = 0, signal }: PlayerOptions = {}): Promise<Player> {
    await this.#connect(token, signal);
    return new Player((hold) => this.#disconnect(token, hold), holdMs);
  }

  /** Publishes any JSON value in the lobby list, at most once a second. */
  setState(value: Json): void {
    // A copy, because the game can change the value before it is sent.
    this.#state = structuredClone({ value });
    this.#changed.resolve();
  }

  /** Closes the lobby for new players, or opens it. */
  setClosed(isClosed = true): void {
    this.#isClosed = isClosed;
    this.#changed.resolve();
  }

  /**
   * Returns a listener for the event `connection` of the library `ws` that confirms the player first.
   *
   * The token is the query parameter `token`. The slot is released when the socket is closed.
   */
  websocket<Socket extends WebSocketLike>(
    play: (socket: Socket, player: Player) => void,
    options: PlayerOptions = {},
  ): (socket: Socket, request: { url?: string }) => Promise<void> {
    return async (socket, request) => {
      const gone = new AbortController();
      socket.on("close", () => gone.abort());
      try {
        const token = tokenOf(request.url ?? "");
        const player = await this.player(token, { ...options, signal: gone.signal });
        gone.signal.addEventListener("abort", () => player.leave());
        if (gone.signal.aborted) player.leave();
        else play(socket, player);
      } catch (error) {
        if (error instanceof HostingError) socket.close(1008, error.code);
        else if (!gone.signal.aborted) throw error;
      }
    };
  }

  /** Closes the lobby, releases all slots, and waits at most 5 s for the service. */
  async close(): Promise<void> {
    this.stop("close");
    for (const token of [...this.#players]) this.#disconnect(token, 0);
    this.#isFinishing = true;
    this.#changed.resolve();
    await within(Promise.all([...this.#releases.values(), this.#running]), CLOSE_TOTAL_MS);
    this.#closing.abort();
    process.off("SIGTERM", this.#onSigterm);
    process.off("SIGINT", this.#onSigint);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  readonly #onSigterm = () => this.stop("SIGTERM");
  readonly #onSigint = () => this.stop("SIGINT");

  async #connect(token: string, signal?: AbortSignal): Promise<void> {
    if (!this.#http) {
      this.#players.add(token);
      return;
    }
    if (this.#confirming.has(token) || this.#players.has(token) || this.#releases.has(token)) {
      throw new HostingError("PLAYER_TOKEN_CONSUMED", 409, "The player token was already used.");
    }
    this.#confirming.add(token);
    try {
      const path = "players/connected";
      const body = { player_token: token };
      await this.#http.call("POST", path, body, CONFIRM_ATTEMPT_MS, CONFIRM_TOTAL_MS, signal);
      this.#players.add(token);
    } catch (error) {
      // After a cancellation or without an answer the slot may be connected.
      if (!(error instanceof HostingError) || error.isTemporary) this.#release(token, 0);
      throw error;
    } finally {
      this.#confirming.delete(token);
    }
  }

  #disconnect(token: string, holdMs: number): void {
    if (!this.#players.delete(token)) return;
    this.#left.resolve();
    this.#release(token, holdMs);
  }

  #release(token: string, holdMs: number): void {
    if (!this.#http) return;
    const body = { player_token: token, ...(holdMs ? { hold_ms: holdMs } : {}) };
    const call = this.#http.call("POST", "players/disconnected", body, ATTEMPT_MS, RELEASE_TOTAL_MS, this.#closing.signal);
    const release = call
      // The next heartbeats omit the token, and the service then releases the slot.
      .catch((error) => log("slot not released", { code: error.code, ray_id: error.rayId }, "warning"))
      .finally(() => this.#releases.delete(token));
    this.#releases.set(token, release);
  }

  /** Sends heartbeats and changes. Sends all values again after an outage, because calls may be lost. */
  async #run(): Promise<void> {
    let nextPause = pauses();
    let isAway = false;
    while (this.#http && !this.#closing.signal.aborted) {
      this.#changed = deferred();
      try {
        await this.#sendDue(this.#http);
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        if (!(error instanceof HostingError)) throw error;
        if (LOBBY_ENDED_STATUSES.has(error.status)) {
          this.#error = error;
          this.stop(error.code);
          return;
        }
        if (!isAway) log("call failed", { code: error.code, ray_id: error.rayId }, "warning");
        isAway = true;
        this.#isDeclared = false;
        await this.#pause(sleep(Math.max(nextPause(), error.retryAfterMs), this.#closing.signal));
        continue;
      }
      if (this.#isFinishing && this.#isClosed === this.#sentClosed) return;
      if (isAway) log("the service answers again");
      nextPause = pauses();
      isAway = false;
      const due = this.#state === this.#sentState ? this.#heartbeatDue : Math.min(this.#heartbeatDue, this.#stateDue);
      const aborted = sleep(Math.max(due - performance.now(), 0), this.#closing.signal);
      await this.#pause(Promise.race([this.#changed.promise, aborted]));
    }
  }

  /** Waits, also if `close` ends the wait. */
  async #pause(wait: Promise<void>): Promise<void> {
    await wait.catch(() => undefined);
  }

  async #sendDue(http: Http): Promise<void> {
    const send = (method: string, path: string, body: Json) =>
      http.attempt(method, path, body, newKey(), ATTEMPT_MS, this.#closing.signal);
    if (!this.#isDeclared) {
      this.#isDeclared = true;
      this.#sentClosed = this.#sentState = undefined;
      if (this.#isWantedReady) {
        await send("POST", "lobbies/ready", {});
        if (!this.#isReady) log("ready");
        this.#isReady = true;
        this.#answered.resolve();
      }
    }
    if (this.#isClosed !== this.#sentClosed) {
      const isClosed = this.#isClosed;
      await send("PUT", "lobbies/closed", { is_closed: isClosed });
      this.#sentClosed = isClosed;
    }
    const now = performance.now();
    if (this.#state !== this.#sentState && now >= this.#stateDue) {
      const state = this.#state;
      this.#stateDue = now + STATE_INTERVAL_MS;
      try {
        await send("PUT", "lobbies/state", state.value);
      } catch (error) {
        if (!(error instanceof HostingError) || error.isTemporary || LOBBY_ENDED_STATUSES.has(error.status)) throw error;
        log("state not published", { code: error.code, detail: error.detail }, "error");
      }
      this.#sentState = state;
    }
    if (now >= this.#heartbeatDue) {
      await send("POST", "lobbies/heartbeat", { player_tokens: [...this.#players] });
      this.#heartbeatDue = now + this.#heartbeatMs;
    }
  }
}

/** A player of the lobby, from `connected` to `disconnected`. */
export class Player {
  readonly #release: (holdMs: number) => void;

  constructor(
    release: (holdMs: number) => void,
    public holdMs: number,
  ) {
    this.#release = release;
  }

  /** Releases the slot in the background. With `holdMs` the service keeps it for the player. */
  leave(): void {
    this.#release(this.holdMs);
  }

  [Symbol.dispose](): void {
    this.leave();
  }
}

/** Writes a line of JSON to standard output, which the service stores. */
export function log(message: string, fields: Record<string, Json> = {}, level = "info"): void {
  process.stdout.write(JSON.stringify({ time: Date.now() / 1000, level, message, ...fields }) + "\n");
}

/** Returns the query parameter `token` of a request path. */
export function tokenOf(path: string): string {
  return new URL(path, "http://localhost").searchParams.get("token") ?? "";
}

interface Deferred {
  promise: Promise<void>;
  resolve: () => void;
}

function deferred(): Deferred {
  let resolve = () => {};
  const promise = new Promise<void>((done) => (resolve = done));
  return { promise, resolve };
}

async function within(promise: Promise<unknown>, timeoutMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise((resolve) => (timer = setTimeout(resolve, timeoutMs)));
  await Promise.race([promise, timeout]);
  clearTimeout(timer);
}
