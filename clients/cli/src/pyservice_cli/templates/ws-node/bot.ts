/** Bot: finds a lobby, and moves to the star. `pyservice play --bots 4` starts four of them. */

import { WebSocket } from "ws";
import { HostingError, Matchmaker, websocketUrl } from "./hosting-game/player.js";

async function main(): Promise<void> {
  const { HOSTING_API_URL, HOSTING_PUBLIC_TOKEN } = process.env;
  const matchmaker = new Matchmaker(HOSTING_API_URL!, HOSTING_PUBLIC_TOKEN!);
  const reservation = await matchmaker.find(["catch"]);
  console.log("plays in lobby", reservation.lobbyId);
  const socket = new WebSocket(websocketUrl(reservation));
  let x = 0;
  let y = 0;
  socket.on("message", (message) => {
    const [starX, starY] = JSON.parse(String(message)).star;
    x += Math.max(-10, Math.min(10, starX - x));
    y += Math.max(-10, Math.min(10, starY - y));
    socket.send(JSON.stringify([x, y]));
  });
}

main().catch((error: unknown) => {
  if (!(error instanceof HostingError)) throw error;
  console.error(`No lobby: ${error.message}`);
  process.exitCode = 1;
});
