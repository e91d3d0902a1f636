const byId = (id) => document.getElementById(id);

export function showPhase(phase, text) {
  document.body.dataset.phase = phase;
  byId("status").textContent = text;
}

export function showNotice(title, text, hasButton) {
  byId("notice-title").textContent = title;
  byId("notice-text").textContent = text;
  byId("again").hidden = !hasButton;
  byId("notice").hidden = false;
}

export function hideNotice() {
  byId("notice").hidden = true;
}

export function showScores(game) {
  const players = [...game.newest.players].sort((a, b) => b[3] - a[3] || a[0] - b[0]);
  byId("scores").replaceChildren(...players.map(([id, , , score]) => {
    const { name, hue } = game.roster.get(id) ?? { name: "…", hue: 0 };
    const item = document.createElement("li");
    item.className = id === game.welcome.id ? "me" : "";
    const dot = document.createElement("span");
    dot.className = "dot";
    dot.style.background = `hsl(${hue} 80% 60%)`;
    const label = document.createElement("span");
    label.className = "name";
    label.textContent = id === game.welcome.id ? `${name} (you)` : name;
    const points = document.createElement("span");
    points.className = "score";
    points.textContent = score;
    item.append(dot, label, points);
    return item;
  }));
}

// Writes the positions as text, for screen readers and tests.
export function showPositions(game) {
  const spell = ([id, x, y]) => `#${id} ${x},${y}`;
  const me = game.newest.players.find(([id]) => id === game.welcome.id);
  const others = game.newest.players.filter(([id]) => id !== game.welcome.id);
  const line = byId("positions");
  line.textContent = `tick ${game.newest.tick} · you ${me ? spell(me) : "nowhere"} · others ${others.map(spell).join(" ") || "none"}`;
  line.dataset.me = me ? `${me[1]},${me[2]}` : "";
  line.dataset.others = JSON.stringify(Object.fromEntries(others.map(([id, x, y]) => [id, [x, y]])));
  byId("figures").textContent = `${game.newest.players.length} in the arena · ${game.arrivals.length} updates/s`;
}
