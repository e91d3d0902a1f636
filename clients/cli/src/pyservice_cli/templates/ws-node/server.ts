import { WebSocketServer, type WebSocket } from "ws";
import { LobbyServer } from "./hosting-game/server.js";

const star = [300, 200];
const players = new Map<WebSocket, number[]>(); // x, y and score of each socket

const clamped = (value: unknown, max: number) => Math.min(Math.max(Math.trunc(Number(value) || 0), 0), max);

function play(socket: WebSocket): void {
  const mine = [0, 0, 0];
  players.set(socket, mine);
  socket.on("close", () => players.delete(socket));
  socket.on("message", (message) => {
    let wish: unknown;
    try {
      wish = JSON.parse(String(message));
    } catch {}
    if (!Array.isArray(wish)) return socket.close(1008, "send [x, y]");
    mine[0] = clamped(wish[0], 600);
    mine[1] = clamped(wish[1], 400);
    if (Math.abs(mine[0]! - star[0]!) + Math.abs(mine[1]! - star[1]!) < 20) {
      mine[2]! += 1;
      star[0] = Math.floor(Math.random() * 600);
      star[1] = Math.floor(Math.random() * 400);
    }
  });
}

async function main(): Promise<void> {
  const lobby = LobbyServer.fromEnvironment();
  const server = new WebSocketServer({ host: lobby.bindAddress, port: lobby.port(), maxPayload: 256 });
  server.on("connection", lobby.websocket(play));
  const ticks = setInterval(() => {
    const state = JSON.stringify({ star, players: [...players.values()] });
    for (const socket of players.keys()) socket.send(state);
  }, 50);
  await lobby.ready();
  await lobby.stopping();
  clearInterval(ticks);
  for (const socket of players.keys()) socket.close(1001);
  server.close();
  await lobby.close();
}

void main();
