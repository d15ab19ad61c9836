// The timeline on a canvas: boxes when they are wide enough, exact shares in columns when they are not.
"use strict";

const LABELS = 56, BUSY = 46, COLUMN = 4, AXIS = 24; // pixels: rank labels, busy shares, a column of shares, the time axis

class Timeline {
  // `axis`: nanoseconds that the picture can show, of this run or of a longer one beside it.
  constructor(canvas, tip, run, axis) {
    Object.assign(this, { canvas, tip });
    this.show(run, axis);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement); // a frame may get its size late
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(run, axis) {
    Object.assign(this, { run, axis, from: 0, to: axis, gaps: null, mark: null });
    this.row = run.ranks <= 16 ? 26 : run.ranks <= 40 ? 18 : run.ranks <= 100 ? 8 : 3;
    this.pitch = this.row + (this.row > 3 ? 3 : 1);
    this.busy = Array.from({ length: run.ranks }, (_, rank) => busyShare(run, rank));
    this.usual = [...this.busy].sort((a, b) => a - b)[Math.floor(run.ranks / 2)];
    this.tip.hidden = true;
    this.draw();
  }

  get width() { return this.canvas.clientWidth - LABELS - BUSY; }

  get whole() { return this.to - this.from >= this.axis * (1 - 1e-9); }

  x(time) { return LABELS + (time - this.from) / (this.to - this.from) * this.width; }

  time(x) { return this.from + (x - LABELS) / this.width * (this.to - this.from); }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { run } = this, height = run.ranks * this.pitch + AXIS, pen = prepare(this.canvas, height);
    this.look = palette(pen);
    this.drawRows(pen);
    if (run.bins || this.crowded()) this.drawShares(pen); else this.drawBoxes(pen);
    this.drawMark(pen);
    drawAxis(pen, this.look, { from: this.from, to: this.to, width: this.width, y: height - AXIS });
  }

  // Whether any rank has so many ops in view that boxes would be too narrow to tell apart.
  crowded() {
    for (let rank = 0; rank < this.run.ranks; rank++) {
      if (firstAfter(this.run, rank, this.to) - firstAfter(this.run, rank, this.from) > this.width / COLUMN) return true;
    }
    return false;
  }

  drawRows(pen) {
    const { run, look } = this, every = Math.ceil(12 / this.pitch);
    const left = this.x(Math.max(0, this.from)), right = Math.max(left, this.x(Math.min(run.window, this.to)));
    for (let rank = 0; rank < run.ranks; rank++) {
      pen.fillStyle = look.idle;
      pen.fillRect(left, rank * this.pitch, right - left, this.row);
      if (rank % every) continue;
      const middle = rank * this.pitch + this.row / 2 + 1;
      pen.fillStyle = look.text;
      pen.textAlign = "left";
      pen.fillText(`rank ${rank}`, 2, middle);
      pen.fillStyle = this.busy[rank] > this.usual + .03 ? look.text : look.soft;
      pen.font = this.busy[rank] > this.usual + .03 ? BOLD : PLAIN; // the rank that the others wait for
      pen.textAlign = "right";
      pen.fillText(`${Math.round(100 * this.busy[rank])} %`, LABELS + this.width + BUSY - 2, middle);
      pen.font = PLAIN;
    }
    pen.textAlign = "left";
  }

  drawBoxes(pen) {
    const { run, look } = this, paths = new Map(), labels = [], edge = new Path2D();
    for (let rank = 0; rank < run.ranks; rank++) {
      const top = rank * this.pitch;
      for (let i = firstAfter(run, rank, this.from); i < run.offsets[rank + 1] && run.start[i] < this.to; i++) {
        const left = Math.max(this.x(run.start[i]), LABELS), wide = Math.min(this.x(run.end[i]), LABELS + this.width) - left;
        const key = KINDS[run.kind[i]] + (run.later[i] ? "2" : "");
        if (!paths.has(key)) paths.set(key, new Path2D());
        paths.get(key).rect(left, top, wide, this.row);
        if (wide > 3) edge.rect(left + .5, top + .5, wide - 1, this.row - 1);
        const label = String(run.slices > 1 ? opName(run, i).split(/[FIWB]/)[1] : run.unit[i]);
        if (this.row >= 14 && wide > 7 * label.length + 4) labels.push([label, left + wide / 2, top + this.row / 2 + 1, wide]);
      }
    }
    for (const [key, path] of paths) fill(pen, look, key, path);
    pen.strokeStyle = look.edge;
    pen.stroke(edge);
    drawLabels(pen, look, labels);
  }

  // Each column shows the exact share of each kind in its stretch of time, stacked from below: idle stays free on top.
  drawShares(pen) {
    const columns = Math.ceil(this.width / COLUMN);
    for (let rank = 0; rank < this.run.ranks; rank++) {
      const shares = this.run.bins ? this.pour(rank, columns) : this.count(rank, columns);
      const low = new Float64Array(columns).fill(rank * this.pitch + this.row);
      for (const kind of [F, B, I, W]) {
        pen.fillStyle = this.look[KINDS[kind]]; // single rectangles: a path of thousands takes ten times as long to fill
        for (let c = 0; c < columns; c++) {
          const tall = shares[kind][c] * this.row;
          if (tall > 0) pen.fillRect(LABELS + c * COLUMN, low[c] -= tall, Math.min(COLUMN, this.width - c * COLUMN), tall);
        }
      }
    }
  }

  count(rank, columns) {
    const { run } = this, shares = empty(columns), scale = columns / (this.to - this.from);
    for (let i = firstAfter(run, rank, this.from); i < run.offsets[rank + 1] && run.start[i] < this.to; i++) {
      spread(shares[run.kind[i]], (run.start[i] - this.from) * scale, (run.end[i] - this.from) * scale, 1);
    }
    return shares;
  }

  pour(rank, columns) {
    const { run } = this, shares = empty(columns), scale = columns / (this.to - this.from), wide = run.window / run.bins;
    const first = Math.max(0, Math.floor(this.from / wide)), last = Math.min(run.bins - 1, Math.floor(this.to / wide));
    for (let kind = 0; kind < 4; kind++) for (let bin = first; bin <= last; bin++) {
      const share = run.shares[kind][rank * run.bins + bin];
      if (share) spread(shares[kind], (bin * wide - this.from) * scale, ((bin + 1) * wide - this.from) * scale, share);
    }
    return shares;
  }

  drawMark(pen) {
    if (!this.mark) return;
    const left = Math.max(LABELS, this.x(this.mark.begin)), right = Math.min(LABELS + this.width, this.x(this.mark.end));
    pen.strokeStyle = this.look.accent;
    pen.lineWidth = 2;
    if (right > left) pen.strokeRect(left, this.mark.rank * this.pitch, right - left, this.row);
    pen.lineWidth = 1;
  }

  zoom(factor, around) {
    const span = Math.min(this.axis, Math.max(this.axis * 1e-6, 100, (this.to - this.from) * factor));
    this.place(around - (around - this.from) / (this.to - this.from) * span, span);
  }

  place(from, span) {
    this.from = Math.max(0, Math.min(from, this.axis - span));
    this.to = this.from + span;
    this.tip.hidden = true;
    this.draw();
    this.moved?.(this);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => {
      if (event.deltaY > 0 && this.whole) return; // nothing left to zoom out of: the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : .8, this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      this.grip = { x: event.offsetX, from: this.from };
      canvas.setPointerCapture(event.pointerId);
      this.hover(event);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { this.grip = null; });
    canvas.addEventListener("pointermove", event => this.hover(event));
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", event => { if (!event.ctrlKey && !event.metaKey && this.act(event.key)) event.preventDefault(); });
  }

  hover({ offsetX, offsetY }) {
    if (this.grip && Math.abs(offsetX - this.grip.x) > 3) {
      const span = this.to - this.from;
      this.place(this.grip.from - (offsetX - this.grip.x) / this.width * span, span);
      return;
    }
    const rank = Math.floor(offsetY / this.pitch), time = this.time(offsetX);
    const there = rank < this.run.ranks && time >= this.from && time <= Math.min(this.to, this.run.window);
    if (there) this.say(explain(this.run, rank, time), offsetX, offsetY); else this.tip.hidden = true;
  }

  say(sentence, x, y) {
    this.tip.textContent = sentence;
    this.tip.hidden = !sentence;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.canvas.clientWidth - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  // What a key or button does; false where it does nothing.
  act(key) {
    const span = this.to - this.from, middle = this.from + span / 2;
    const does = {
      "+": () => this.zoom(.5, middle), "=": () => this.zoom(.5, middle), "-": () => this.zoom(2, middle),
      "0": () => this.place(0, this.axis), "Escape": () => { this.mark = null; this.tip.hidden = true; this.draw(); },
      "ArrowLeft": () => this.place(this.from - span / 5, span), "ArrowRight": () => this.place(this.from + span / 5, span),
      "n": () => this.step(1), "p": () => this.step(-1),
    }[key];
    does?.();
    return Boolean(does);
  }

  // To the next or previous of the longest gaps, marked and said.
  step(by) {
    if (this.run.bins) return;
    this.gaps ??= gapsOf(this.run).sort((a, b) => b.end - b.begin - (a.end - a.begin)).slice(0, 100);
    if (!this.gaps.length) return;
    this.at = this.mark ? (this.at + by + this.gaps.length) % this.gaps.length : by > 0 ? 0 : this.gaps.length - 1;
    const gap = this.mark = this.gaps[this.at], long = gap.end - gap.begin;
    const hidden = gap.begin < this.from || gap.end > this.to, narrow = this.x(gap.end) - this.x(gap.begin) < 8;
    const span = narrow ? Math.min(this.axis, 12 * long) : this.to - this.from;
    if (hidden || narrow) this.place((gap.begin + gap.end - span) / 2, span); else this.draw();
    this.say(explainGap(this.run, gap), this.x(Math.max(gap.begin, this.from)), gap.rank * this.pitch + this.row - 12);
  }
}

function busyShare(run, rank) {
  let sum = 0;
  if (run.bins) for (const share of run.shares) for (let bin = 0; bin < run.bins; bin++) sum += share[rank * run.bins + bin] / run.bins;
  else for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) sum += (run.end[i] - run.start[i]) / run.window;
  return sum;
}

const empty = columns => [0, 1, 2, 3].map(() => new Float64Array(columns));

// Adds a stretch of columns, its ends in part.
function spread(column, from, to, weight) {
  const first = Math.max(0, Math.floor(from)), last = Math.min(column.length - 1, Math.floor(to));
  for (let c = first; c <= last; c++) column[c] += weight * Math.max(0, Math.min(to, c + 1) - Math.max(from, c));
}
