/** Conformance driver of the TypeScript helper in Node: see `conformance/README.md`. */

import { createInterface } from "node:readline";
import { playerCommands, run, snakeCase, type Commands } from "./conformance-player.js";
import { LobbyServer, log, type Player } from "./server.js";

let server: LobbyServer;
const players = new Map<string, Player>();

const commands: Commands = {
  ...playerCommands,
  open_server: (_, { environment, heartbeat_ms }) => {
    server = new LobbyServer(environment, heartbeat_ms);
    const { isLocal, lobbyId, gameMode, regionId, maxPlayers, bindAddress, tags, config } = server;
    const info = snakeCase({ isLocal, lobbyId, gameMode, regionId, maxPlayers, bindAddress });
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
};

for await (const line of createInterface({ input: process.stdin })) {
  void run(commands, line, (answer) => process.stdout.write(answer + "\n"));
}
