// Finds a lobby, connects to its server, and sends the held directions. API address, public token and game mode are in
// the fragment of the URL (#api=...&token=...&mode=...), which browsers do not send to servers.

import { Game } from "./game.js";
import { Steering } from "./steering.js";
import { View } from "./view.js";
import { hideNotice, showNotice, showPhase, showPositions, showScores } from "./words.js";

const PORT_NAME = "game";
const REPEAT_INPUT_MS = 1000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const WORDS_EVERY_MS = 150;
// After these close codes a new attempt would fail in the same way.
const FINAL_CLOSE_CODES = new Set([4010, 4011, 4012, 4013]);
const CONNECTION_LOST = 1006;
const FULL = ["The arena is full", "No lobby has a free place. You get in as soon as one has…"];
const FINAL_PROBLEMS = {
  401: ["This address is no longer valid", "The service does not accept its token. Ask for a new link."],
  403: ["This game cannot be joined", "The service does not allow it."],
  404: ["There is no such game", "Neither game mode nor region is known to the service."],
  400: ["This address is wrong", "The service did not understand what it asks for."],
};

const byId = (id) => document.getElementById(id);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function readAddress() {
  const fields = new URLSearchParams(location.hash.slice(1));
  return {
    api: (fields.get("api") ?? "").replace(/\/+$/, ""),
    token: fields.get("token") ?? "",
    mode: fields.get("mode") ?? "arena",
  };
}

class Problem extends Error {
  constructor(title, text, isFinal = false) {
    super(title);
    this.title = title;
    this.text = text;
    this.isFinal = isFinal;
  }
}

class LobbyEnded extends Problem {}

async function find(address, key) {
  let response;
  try {
    response = await fetch(`${address.api}/matchmaker/lobbies/find`, {
      method: "POST",
      headers: {
        "authorization": `Bearer ${address.token}`,
        "content-type": "application/json",
        "idempotency-key": key,
      },
      body: JSON.stringify({ game_modes: [address.mode] }),
    });
  } catch {
    throw new Problem("The service cannot be reached", "Trying again…");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 409) throw new Problem(...FULL);
  if (response.status === 410) throw new LobbyEnded("That lobby has ended", "Finding another…");
  if (response.status === 429) throw new Problem("Too many tries", "Waiting a moment…");
  if (response.status in FINAL_PROBLEMS) throw new Problem(...FINAL_PROBLEMS[response.status], true);
  throw new Problem("The service is busy", `${answer.code ?? response.status}. Trying again…`);
}

// crypto.randomUUID exists only on https and localhost.
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function socketAddress(found) {
  const port = found.ports?.[PORT_NAME];
  if (!port) throw new Problem("This is another game", `Its lobbies have no port named ${PORT_NAME}.`, true);
  return `${port.is_tls ? "wss" : "ws"}://${port.host}/play?token=${encodeURIComponent(found.player.token)}`;
}

function play(address, steering, onGame) {
  return new Promise((resolve) => {
    const socket = new WebSocket(address);
    const game = new Game();
    let seq = 0, sentDirs = 0, repeat = 0;
    const sendInput = () => {
      if (!game.welcome || socket.readyState !== WebSocket.OPEN) return;
      sentDirs = steering.dirs;
      seq += 1;
      socket.send(JSON.stringify({ seq, dirs: sentDirs }));
    };
    steering.onChange = () => {
      if (steering.dirs !== sentDirs) sendInput();
    };
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      game.take(message);
      if (message.type !== "welcome") return;
      onGame(game);
      sendInput();
      repeat = setInterval(sendInput, REPEAT_INPUT_MS);
    };
    socket.onclose = (event) => {
      clearInterval(repeat);
      steering.onChange = () => {};
      resolve({ code: event.code, reason: event.reason, hadWelcome: game.welcome !== null });
    };
  });
}

function drawForEver(view, current) {
  let shownMs = 0;
  const frame = () => {
    const game = current.game;
    if (game?.newest) {
      view.draw(game);
      if (performance.now() - shownMs > WORDS_EVERY_MS) {
        shownMs = performance.now();
        showScores(game);
        showPositions(game);
      }
    }
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

// Repeats find and play. Returns a problem that a new attempt cannot solve.
async function playUntilFinal(address, steering, current) {
  let tries = 0;
  // find with the same key returns the same slot. With a new key, each attempt would reserve another slot.
  let key = newKey();
  for (;;) {
    try {
      showPhase("finding", tries ? "Reconnecting…" : "Looking for a lobby…");
      const found = await find(address, key);
      showPhase("connecting", "Joining…");
      const end = await play(socketAddress(found), steering, (game) => {
        tries = 0;
        current.game = game;
        hideNotice();
        showPhase("playing", `Playing as ${game.welcome.name}`);
        byId("view").focus();
      });
      if (end.hadWelcome || end.code !== CONNECTION_LOST) key = newKey();
      const isFinal = FINAL_CLOSE_CODES.has(end.code);
      throw new Problem(end.hadWelcome ? "You left the arena" : "You could not join",
        `${end.reason || "The connection was lost"} (${end.code}). ${isFinal ? "" : "Finding another lobby…"}`, isFinal);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem instanceof LobbyEnded) key = newKey();
      if (problem.isFinal) return problem;
      showPhase("waiting", problem.title);
      showNotice(problem.title, problem.text, false);
      await pause(RETRY_MS[Math.min(tries, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2));
      tries += 1;
    }
  }
}

async function main() {
  const steering = new Steering(byId("stage"), byId("stick"));
  const current = { game: null };
  drawForEver(new View(byId("view")), current);
  for (;;) {
    const address = readAddress();
    const problem = address.api && address.token
      ? await playUntilFinal(address, steering, current)
      : new Problem("This address is not complete", "It must end with #api=<address of the service>&token=<public token>.");
    showPhase("ended", problem.title);
    showNotice(problem.title, problem.text, true);
    await Promise.race([
      new Promise((resolve) => byId("again").addEventListener("click", resolve, { once: true })),
      new Promise((resolve) => addEventListener("hashchange", resolve, { once: true })),
    ]);
    hideNotice();
  }
}

main();
