// The timeline on a canvas: boxes when they are wide enough, exact shares in columns when they are not.
"use strict";

const LABELS = 56, BUSY = 46, COLUMN = 4, AXIS = 24; // pixels: rank labels, busy shares, a column of shares, the time axis

class Timeline {
  // `axis`: nanoseconds that the picture can show, of this run or of a longer one beside it. `told`: where a measured range is said.
  constructor(canvas, tip, run, axis, told) {
    Object.assign(this, { canvas, tip, told, below: [] });
    this.show(run, axis);
    listen(this);
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement); // a frame may get its size late
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(run, axis) {
    Object.assign(this, { run, axis, from: 0, to: axis, gaps: null, mark: null, range: null });
    this.row = run.ranks <= 16 ? 26 : run.ranks <= 40 ? 18 : run.ranks <= 100 ? 8 : 3;
    this.pitch = this.row + (this.row > 3 ? 3 : 1);
    this.busy = Array.from({ length: run.ranks }, (_, rank) => busyShare(run, rank));
    this.usual = [...this.busy].sort((a, b) => a - b)[Math.floor(run.ranks / 2)];
    this.tip.hidden = true;
    this.draw();
  }

  get width() { return this.canvas.clientWidth - LABELS - BUSY; }

  x(time) { return LABELS + (time - this.from) / (this.to - this.from) * this.width; }

  time(x) { return this.from + (x - LABELS) / this.width * (this.to - this.from); }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { run } = this, height = run.ranks * this.pitch + AXIS, pen = prepare(this.canvas, height);
    this.look = palette(pen);
    this.drawRows(pen);
    if (run.bins || this.crowded()) this.drawShares(pen); else this.drawBoxes(pen);
    this.drawMark(pen);
    this.drawRange(pen);
    drawAxis(pen, this.look, { from: this.from, to: this.to, width: this.width, y: height - AXIS });
    for (const picture of this.below) picture.draw();
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
  // Pixels are set one by one, mixed where a share ends inside one: as rectangles they would take ten times as long.
  drawShares(pen) {
    const { run } = this, ratio = globalThis.devicePixelRatio || 1, pixels = at => Math.round(at * ratio);
    const columns = Math.ceil(this.width / COLUMN), wide = pixels(this.width), step = (this.to - this.from) / columns;
    const image = pen.createImageData(wide, pixels(run.ranks * this.pitch)), dots = new Uint32Array(image.data.buffer);
    const inks = [F, B, I, W].map(kind => [kind, rgb(this.look[KINDS[kind]])]), idle = rgb(this.look.idle);
    const edges = Array.from({ length: columns + 1 }, (_, c) => Math.min(wide, pixels(c * COLUMN))), stack = new Uint32Array(pixels(this.row) + 1);
    for (let rank = 0; rank < run.ranks; rank++) {
      const top = pixels(rank * this.pitch), tall = pixels(rank * this.pitch + this.row) - top;
      const shares = sharesOf(run, rank, this.from, this.to, columns);
      for (let c = 0; c < columns && this.from + c * step < run.window; c++) {
        pile(stack, tall, shares, c, inks, idle);
        for (let y = 0; y < tall; y++) {
          const line = (top + tall - 1 - y) * wide;
          for (let x = edges[c]; x < edges[c + 1]; x++) dots[line + x] = stack[y];
        }
      }
    }
    pen.putImageData(image, pixels(LABELS), 0);
  }

  drawMark(pen) {
    if (!this.mark) return;
    const left = Math.max(LABELS, this.x(this.mark.begin)), right = Math.min(LABELS + this.width, this.x(this.mark.end));
    pen.strokeStyle = this.look.accent;
    pen.lineWidth = 2;
    if (right > left) pen.strokeRect(left, this.mark.rank * this.pitch, right - left, this.row);
    pen.lineWidth = 1;
  }

  // The range that is measured: its two ends over all ranks, the rest of the picture veiled.
  drawRange(pen) {
    if (!this.range) return;
    const tall = this.run.ranks * this.pitch, right = LABELS + this.width;
    const [begin, end] = this.range.map(time => Math.max(LABELS, Math.min(right, this.x(time))));
    pen.fillStyle = this.look.page;
    pen.globalAlpha = .6;
    pen.fillRect(LABELS, 0, begin - LABELS, tall);
    pen.fillRect(end, 0, right - end, tall);
    pen.globalAlpha = 1;
    pen.fillStyle = this.look.accent;
    for (const edge of [begin, end]) pen.fillRect(edge - 1, 0, 2, tall);
  }

  zoom(factor, around) {
    const span = Math.min(this.axis, Math.max(this.axis * 1e-7, 100, (this.to - this.from) * factor));
    this.place(around - (around - this.from) / (this.to - this.from) * span, span);
  }

  place(from, span) {
    this.from = Math.max(0, Math.min(from, this.axis - span));
    this.to = this.from + span;
    this.tip.hidden = true;
    this.draw();
    this.moved?.(this);
  }

  // Measure between two times, in either order; null for no range. `led`: by a picture beside it, which has moved itself.
  measure(range, led = false) {
    const [begin, end] = range ? [Math.min(...range), Math.max(...range)] : [0, 0];
    const inside = [Math.max(0, begin), Math.min(this.axis, end)];
    this.range = inside[1] > inside[0] ? inside : null;
    this.say("");
    if (this.told) this.told.textContent = this.range && inside[0] < this.run.window ? measured(this.run, inside[0], Math.min(inside[1], this.run.window)) : "";
    this.draw();
    if (!led) this.moved?.(this);
  }

  say(sentence, x = 0, y = 0) {
    this.tip.textContent = sentence;
    this.tip.hidden = !sentence;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, this.canvas.clientWidth - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  // To the next or previous of the longest gaps, marked and said.
  step(by) {
    if (this.run.bins) return;
    this.gaps ??= longestGaps(this.run, 100);
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

// Pixels of column c, from below: what each kind fills of it, then idle.
function pile(stack, tall, shares, c, inks, idle) {
  let y = 0, filled = 0, red = 0, green = 0, blue = 0; // the pixel that is being filled, how much of it is, and with what
  for (let k = 0; k <= inks.length && y < tall; k++) {
    const [ink, share] = k < inks.length ? [inks[k][1], shares[inks[k][0]][c]] : [idle, 1];
    for (let rest = share * tall; rest > 1e-9 && y < tall;) {
      const part = Math.min(rest, 1 - filled);
      red += part * ink[0];
      green += part * ink[1];
      blue += part * ink[2];
      filled += part;
      rest -= part;
      if (filled < 1 - 1e-9) continue;
      stack[y++] = 0xff000000 | Math.round(blue) << 16 | Math.round(green) << 8 | Math.round(red);
      filled = red = green = blue = 0;
    }
  }
}
