// Delay of the picture, so that positions can be interpolated between two snapshots.
const DRAW_DELAY_MS = 100;
const SNAPSHOTS_KEPT = 40;

const now = () => performance.now();

export class Game {
  constructor() {
    this.welcome = null;
    this.roster = new Map();
    this.snapshots = [];
    this.newest = null;
    this.clockOffsetMs = null;
    this.sparks = [];
    this.arrivals = [];
  }

  take(message) {
    if (message.type === "welcome") this.welcome = message;
    else if (message.type === "roster") {
      this.roster = new Map(message.players.map(([id, name, hue]) => [id, { name, hue }]));
    } else if (message.type === "state") this.takeState(message);
  }

  takeState(state) {
    const atMs = now();
    const tickMs = 1000 / this.welcome.tick_hz;
    // The message with the shortest delay gives the best estimate of the server's clock.
    const offset = atMs - state.tick * tickMs;
    if (this.clockOffsetMs === null || offset < this.clockOffsetMs) this.clockOffsetMs = offset;
    else this.clockOffsetMs += (offset - this.clockOffsetMs) * 0.01;
    this.sparkWhereGemsWent(state);
    this.newest = state;
    this.snapshots.push({
      tick: state.tick,
      players: new Map(state.players.map(([id, x, y, score, seq, shaken]) => [id, { id, x, y, score, seq, shaken }])),
    });
    if (this.snapshots.length > SNAPSHOTS_KEPT) this.snapshots.shift();
    this.arrivals.push(atMs);
    while (this.arrivals[0] < atMs - 1000) this.arrivals.shift();
  }

  sparkWhereGemsWent(state) {
    if (!this.newest) return;
    const left = new Set(state.gems.map(([id]) => id));
    for (const [id, x, y, value] of this.newest.gems) {
      if (!left.has(id)) this.sparks.push({ x, y, value, bornMs: now() });
    }
  }

  // Returns the interpolated players of DRAW_DELAY_MS ago.
  playersToDraw() {
    if (!this.snapshots.length) return [];
    const tick = (now() - DRAW_DELAY_MS - this.clockOffsetMs) * this.welcome.tick_hz / 1000;
    let later = this.snapshots.findIndex((snapshot) => snapshot.tick > tick);
    if (later === -1) later = this.snapshots.length - 1;
    const to = this.snapshots[later];
    const from = this.snapshots[Math.max(later - 1, 0)];
    const part = to === from ? 1 : Math.min(Math.max((tick - from.tick) / (to.tick - from.tick), 0), 1);
    return [...to.players.values()].map((player) => {
      const before = from.players.get(player.id) ?? player;
      const x = before.x + (player.x - before.x) * part;
      const y = before.y + (player.y - before.y) * part;
      return { ...player, x, y, dx: player.x - before.x, dy: player.y - before.y };
    });
  }
}
