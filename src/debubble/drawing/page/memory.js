// Memory over time, under a timeline and on its axis: the activations that ranks hold, in micro-batches of a rank.
"use strict";

const MOST_LINES = 16, HELD_TALL = 72; // ranks with a line of their own; pixels

class Memory {
  constructor(canvas, tip, view) {
    Object.assign(this, { canvas, tip, view });
    canvas.addEventListener("pointermove", event => this.hover(event));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    view.below.push(this);
    this.draw();
  }

  get width() { return this.canvas.clientWidth - LABELS - BUSY; }

  draw() {
    const { run, look } = this.view;
    if (!this.canvas.clientWidth || run.bins || !look) return;
    const pen = prepare(this.canvas, HELD_TALL + 10), most = mostHeld(run);
    const y = held => 5 + HELD_TALL * (1 - held / Math.max(most.held, 1e-9));
    pen.fillStyle = look.text;
    pen.fillText("held", 2, y(most.held) + 6);
    pen.fillText("0", 2, y(0) - 4);
    pen.fillStyle = look.soft;
    pen.textAlign = "right";
    pen.fillText(`≤ ${+most.held.toFixed(2)}`, LABELS + this.width + BUSY - 2, y(most.held) + 6);
    pen.strokeStyle = look.line;
    pen.strokeRect(LABELS, y(most.held), this.width, 0);
    pen.strokeRect(LABELS, y(0), this.width, 0);
    pen.save();
    pen.beginPath();
    pen.rect(LABELS, 0, this.width, HELD_TALL + 10);
    pen.clip();
    const every = Math.ceil(run.ranks / MOST_LINES);
    for (let rank = 0; rank < run.ranks; rank += every) if (rank !== most.rank) this.line(pen, rank, y, look.soft, 1);
    this.line(pen, most.rank, y, look.accent, 2);
    pen.restore();
  }

  // Steps of one rank; of those that fall into one pixel, a stroke from the least to the most.
  line(pen, rank, y, ink, thick) {
    const { run, from, to } = this.view, { held } = run.held, last = run.offsets[rank + 1], step = (to - from) / this.width;
    let i = firstAfter(run, rank, from), now = heldAt(run, rank, from);
    pen.beginPath();
    pen.moveTo(LABELS, y(now));
    for (let x = 1; x <= this.width && from + (x - 1) * step < run.window; x++) {
      const before = now, until = from + x * step;
      let low = now, high = now;
      for (; i < last && (run.kind[i] === F ? run.start[i] : run.end[i]) < until; i++) {
        now = held[i];
        if (now < low) low = now;
        if (now > high) high = now;
      }
      if (now === before && low === high) continue;
      pen.lineTo(LABELS + x, y(before));
      if (low < Math.min(before, now)) pen.lineTo(LABELS + x, y(low));
      if (high > Math.max(before, now)) pen.lineTo(LABELS + x, y(high));
      pen.lineTo(LABELS + x, y(now));
    }
    pen.lineTo(LABELS + (Math.min(to, run.window) - from) / step, y(now));
    pen.strokeStyle = ink;
    pen.lineWidth = thick;
    pen.stroke();
    pen.lineWidth = 1;
  }

  hover({ offsetX, offsetY }) {
    const { run } = this.view, time = this.view.time(offsetX);
    this.tip.hidden = !(time >= 0 && time <= run.window);
    if (this.tip.hidden) return;
    const held = Array.from({ length: run.ranks }, (_, rank) => heldAt(run, rank, time)), top = held.indexOf(Math.max(...held));
    const all = run.ranks <= MOST_LINES ? held.map(each => +each.toFixed(2)).join(", ") : `from ${+Math.min(...held).toFixed(2)} to ${+held[top].toFixed(2)}`;
    this.tip.textContent = `At ${duration(time)} ranks hold ${all} micro-batches of activations${run.ranks > 1 ? `; most on rank ${top}` : ""}.`;
    this.tip.style.left = `${Math.max(0, Math.min(offsetX + 12, this.canvas.clientWidth - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${offsetY + 18}px`;
  }
}

// The rank that holds the most at any time, and how much that is.
function mostHeld(run) {
  const { most } = run.held ??= heldOf(run), held = Math.max(...most);
  return { rank: most.indexOf(held), held };
}
