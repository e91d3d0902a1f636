const UP = 1, DOWN = 2, LEFT = 4, RIGHT = 8;
const KEYS = {
  ArrowUp: UP, KeyW: UP, ArrowDown: DOWN, KeyS: DOWN,
  ArrowLeft: LEFT, KeyA: LEFT, ArrowRight: RIGHT, KeyD: RIGHT,
};

export class Steering {
  constructor(stage, stick) {
    this.held = new Set();
    this.touchDirs = 0;
    this.onChange = () => {};
    this.listenToKeys();
    this.listenToTouch(stage, stick);
  }

  get dirs() {
    let dirs = this.touchDirs;
    for (const code of this.held) dirs |= KEYS[code];
    return dirs;
  }

  listenToKeys() {
    addEventListener("keydown", (event) => {
      if (!(event.code in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.held.add(event.code);
      this.onChange();
    });
    addEventListener("keyup", (event) => {
      if (this.held.delete(event.code)) this.onChange();
    });
    // The browser reports no keyup while another window has the focus.
    addEventListener("blur", () => {
      this.held.clear();
      this.onChange();
    });
  }

  listenToTouch(stage, stick) {
    let start = null;
    const end = () => {
      start = null;
      stick.style.display = "none";
      this.touchDirs = 0;
      this.onChange();
    };
    stage.addEventListener("pointerdown", (event) => {
      if (event.target.closest("button")) return;
      start = { x: event.clientX, y: event.clientY };
      const box = stage.getBoundingClientRect();
      stick.style.left = `${event.clientX - box.left}px`;
      stick.style.top = `${event.clientY - box.top}px`;
      stick.style.display = "block";
      stick.firstElementChild.style.translate = "";
      stage.setPointerCapture(event.pointerId);
    });
    stage.addEventListener("pointermove", (event) => {
      if (!start) return;
      const dx = event.clientX - start.x, dy = event.clientY - start.y;
      const length = Math.hypot(dx, dy);
      const reach = Math.min(length, 40) / (length || 1);
      stick.firstElementChild.style.translate = `${dx * reach}px ${dy * reach}px`;
      this.touchDirs = length < 12 ? 0 : dirsOf(dx, dy);
      this.onChange();
    });
    stage.addEventListener("pointerup", end);
    stage.addEventListener("pointercancel", end);
  }
}

function dirsOf(dx, dy) {
  const flat = Math.tan(Math.PI / 8);
  let dirs = 0;
  if (Math.abs(dx) > Math.abs(dy) * flat) dirs |= dx > 0 ? RIGHT : LEFT;
  if (Math.abs(dy) > Math.abs(dx) * flat) dirs |= dy > 0 ? DOWN : UP;
  return dirs;
}
