const GEM_COLOURS = { small: "#5eead4", big: "#fbbf24" };
const SPARK_MS = 600;

const now = () => performance.now();

export class View {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.trails = new Map();
  }

  draw(game) {
    const { width, height } = game.welcome;
    const scale = this.fit(width, height);
    const pen = this.pen;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.drawFloor(width, height);
    this.drawWalls(game.welcome.walls);
    for (const gem of game.newest?.gems ?? []) this.drawGem(gem, game.welcome.gem_radius);
    const players = game.playersToDraw();
    this.forgetTrailsOfOthersThan(players);
    const best = Math.max(1, ...players.map((player) => player.score));
    for (const player of players) this.drawTrail(player, game);
    for (const player of players) this.drawPlayer(player, game);
    for (const player of players) this.drawName(player, game, player.score === best);
    this.drawSparks(game);
  }

  fit(width, height) {
    const pixels = Math.round(this.canvas.clientWidth * devicePixelRatio);
    if (this.canvas.width !== pixels) {
      this.canvas.width = pixels;
      this.canvas.height = Math.round(pixels * height / width);
    }
    return pixels / width;
  }

  drawFloor(width, height) {
    const pen = this.pen;
    pen.strokeStyle = "#ffffff08";
    pen.lineWidth = 2;
    pen.beginPath();
    for (let x = 80; x < width; x += 80) pen.moveTo(x, 0), pen.lineTo(x, height);
    for (let y = 90; y < height; y += 90) pen.moveTo(0, y), pen.lineTo(width, y);
    pen.stroke();
  }

  drawWalls(walls) {
    const pen = this.pen;
    for (const [x, y, width, height] of walls) {
      const shade = pen.createLinearGradient(x, y, x, y + height);
      shade.addColorStop(0, "#34416b");
      shade.addColorStop(1, "#222c4c");
      pen.fillStyle = shade;
      pen.beginPath();
      pen.roundRect(x, y, width, height, 10);
      pen.fill();
      pen.strokeStyle = "#4a5a90";
      pen.lineWidth = 2;
      pen.stroke();
    }
  }

  drawGem([id, x, y, value], radius) {
    const pen = this.pen;
    const isBig = value > 1;
    const colour = isBig ? GEM_COLOURS.big : GEM_COLOURS.small;
    const size = radius * (isBig ? 1.5 : 1.1) * (1 + 0.08 * Math.sin(now() / 260 + id));
    this.glow(x, y, size * 2.6, colour, 0.35);
    pen.fillStyle = colour;
    pen.beginPath();
    pen.moveTo(x, y - size);
    pen.lineTo(x + size * 0.8, y);
    pen.lineTo(x, y + size);
    pen.lineTo(x - size * 0.8, y);
    pen.closePath();
    pen.fill();
    pen.fillStyle = "#ffffff66";
    pen.beginPath();
    pen.moveTo(x, y - size);
    pen.lineTo(x + size * 0.3, y - size * 0.05);
    pen.lineTo(x - size * 0.8, y);
    pen.closePath();
    pen.fill();
  }

  drawTrail(player, game) {
    const trail = this.trails.get(player.id) ?? [];
    trail.push([player.x, player.y]);
    if (trail.length > 16) trail.shift();
    this.trails.set(player.id, trail);
    const hue = game.roster.get(player.id)?.hue ?? 0;
    trail.forEach(([x, y], index) => {
      this.pen.fillStyle = `hsl(${hue} 85% 62% / ${index * 0.009})`;
      this.pen.beginPath();
      this.pen.arc(x, y, 6 + index * 0.8, 0, Math.PI * 2);
      this.pen.fill();
    });
  }

  forgetTrailsOfOthersThan(players) {
    const present = new Set(players.map((player) => player.id));
    for (const id of this.trails.keys()) if (!present.has(id)) this.trails.delete(id);
  }

  drawPlayer(player, game) {
    const pen = this.pen;
    const hue = game.roster.get(player.id)?.hue ?? 0;
    const isMe = player.id === game.welcome.id;
    const radius = game.welcome.player_radius;
    if (isMe) this.glow(player.x, player.y, radius * 2.4, `hsl(${hue} 90% 65%)`, 0.4);
    const body = pen.createRadialGradient(player.x - 6, player.y - 8, 2, player.x, player.y, radius);
    body.addColorStop(0, `hsl(${hue} 90% 78%)`);
    body.addColorStop(1, `hsl(${hue} 75% 50%)`);
    pen.globalAlpha = player.shaken && Math.floor(now() / 80) % 2 ? 0.45 : 1;
    pen.fillStyle = body;
    pen.beginPath();
    pen.arc(player.x, player.y, radius, 0, Math.PI * 2);
    pen.fill();
    if (isMe) {
      pen.strokeStyle = "#fff";
      pen.lineWidth = 3;
      pen.stroke();
    }
    this.drawEyes(player);
    pen.globalAlpha = 1;
  }

  drawName(player, game, isBest) {
    const pen = this.pen;
    const isMe = player.id === game.welcome.id;
    const name = isMe ? "you" : game.roster.get(player.id)?.name ?? "";
    const text = `${isBest && player.score ? "♛ " : ""}${name}`;
    const reach = game.welcome.player_radius + 10;
    const y = player.y > reach + 24 ? player.y - reach : player.y + reach + 14;
    pen.textAlign = "center";
    pen.font = `${isMe ? 700 : 500} 18px system-ui, sans-serif`;
    pen.lineWidth = 4;
    pen.lineJoin = "round";
    pen.strokeStyle = "#0c1222c0";
    pen.strokeText(text, player.x, y);
    pen.fillStyle = isMe ? "#fff" : "#c3cce2";
    pen.fillText(text, player.x, y);
  }

  drawEyes(player) {
    const pen = this.pen;
    const speed = Math.hypot(player.dx, player.dy);
    const lookX = speed > 0.5 ? player.dx / speed : 0;
    const lookY = speed > 0.5 ? player.dy / speed : 0;
    for (const side of [-7, 7]) {
      pen.fillStyle = "#fff";
      pen.beginPath();
      pen.arc(player.x + side + lookX * 4, player.y - 3 + lookY * 4, 5, 0, Math.PI * 2);
      pen.fill();
      pen.fillStyle = "#10162a";
      pen.beginPath();
      pen.arc(player.x + side + lookX * 6, player.y - 3 + lookY * 6, 2.4, 0, Math.PI * 2);
      pen.fill();
    }
  }

  drawSparks(game) {
    const pen = this.pen;
    game.sparks = game.sparks.filter((spark) => now() - spark.bornMs < SPARK_MS);
    for (const { x, y, value, bornMs } of game.sparks) {
      const age = (now() - bornMs) / SPARK_MS;
      const colour = value > 1 ? GEM_COLOURS.big : GEM_COLOURS.small;
      pen.globalAlpha = 1 - age;
      pen.strokeStyle = colour;
      pen.lineWidth = 4 * (1 - age);
      pen.beginPath();
      pen.arc(x, y, 12 + age * 34, 0, Math.PI * 2);
      pen.stroke();
      pen.fillStyle = colour;
      pen.textAlign = "center";
      pen.font = "700 20px system-ui, sans-serif";
      pen.fillText(`+${value}`, x, y - 16 - age * 26);
      pen.globalAlpha = 1;
    }
  }

  glow(x, y, radius, colour, alpha) {
    const pen = this.pen;
    const light = pen.createRadialGradient(x, y, 0, x, y, radius);
    light.addColorStop(0, colour);
    light.addColorStop(1, "transparent");
    pen.globalAlpha = alpha;
    pen.fillStyle = light;
    pen.beginPath();
    pen.arc(x, y, radius, 0, Math.PI * 2);
    pen.fill();
    pen.globalAlpha = 1;
  }
}
