// The timeline on a canvas: boxes when they are wide enough, exact shares in columns when they are not.
"use strict";

const KIND_WORDS = { F: "forward", I: "input gradient", W: "weight gradient", B: "backward" };
const LABEL_WIDTH = 62, COLUMN = 4, ROW_GAP = 3, AXIS = 22;

class Timeline {
  // `run`: {name, ranks, stages, slices, window, kind[], stage[], unit[], start[], end[], offsets[], binned?}; times in ns.
  constructor(canvas, tip, run, axis) {
    Object.assign(this, { canvas, tip, run, axis });
    this.from = 0;
    this.to = axis;
    this.rowHeight = run.ranks <= 12 ? 26 : run.ranks <= 40 ? 16 : Math.max(4, Math.floor(640 / run.ranks));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement); // a frame may get its size late
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get width() { return this.canvas.clientWidth - LABEL_WIDTH; }

  x(time) { return LABEL_WIDTH + (time - this.from) / (this.to - this.from) * this.width; }

  time(x) { return this.from + (x - LABEL_WIDTH) / this.width * (this.to - this.from); }

  // First op of a rank that ends after a time.
  find(rank, time) {
    const { offsets, end } = this.run;
    let low = offsets[rank], high = offsets[rank + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  draw() {
    const ratio = devicePixelRatio || 1, { canvas, run } = this;
    const height = run.ranks * (this.rowHeight + ROW_GAP) + AXIS;
    if (!canvas.clientWidth) return;
    canvas.style.height = height + "px";
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.look = palette(pen);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let rank = 0; rank < run.ranks; rank++) this.drawRank(pen, rank);
    this.drawAxis(pen, height);
  }

  drawRank(pen, rank) {
    const top = rank * (this.rowHeight + ROW_GAP), { run, look } = this;
    pen.fillStyle = look.text;
    if (this.rowHeight >= 10) pen.fillText("rank " + rank, 2, top + this.rowHeight / 2);
    const left = this.x(Math.max(0, this.from)), right = this.x(Math.min(run.window, this.to));
    if (right <= left) return;
    pen.fillStyle = look.idle;
    pen.fillRect(left, top, right - left, this.rowHeight);
    const first = this.find(rank, this.from), last = this.find(rank, this.to) + 1;
    if (run.binned || last - first > this.width / 3) this.drawShares(pen, rank, top, first);
    else this.drawBoxes(pen, rank, top, first);
  }

  drawBoxes(pen, rank, top, first) {
    const { run, look } = this;
    for (let i = first; i < run.offsets[rank + 1] && run.start[i] < this.to; i++) {
      const left = Math.max(this.x(run.start[i]), LABEL_WIDTH), right = Math.min(this.x(run.end[i]), LABEL_WIDTH + this.width);
      const kind = KINDS[run.kind[i]];
      pen.fillStyle = look[kind];
      pen.fillRect(left, top, right - left, this.rowHeight);
      pen.fillStyle = look.hatch[kind];
      pen.fillRect(left, top, right - left, this.rowHeight);
      pen.strokeStyle = look.page;
      pen.strokeRect(left + .5, top + .5, Math.max(right - left - 1, 0), this.rowHeight - 1);
      const label = String(run.unit[i]);
      if (right - left > 7 * label.length + 4 && this.rowHeight >= 14) {
        pen.fillStyle = look["on" + kind];
        pen.fillText(label, left + 3, top + this.rowHeight / 2 + 1);
      }
    }
  }

  // Each column shows the exact share of each kind in its stretch of time, stacked from below: idle stays free on top.
  drawShares(pen, rank, top, first) {
    const { run, look } = this, columns = Math.ceil(this.width / COLUMN), span = (this.to - this.from) / columns;
    const shares = [0, 1, 2, 3].map(() => new Float64Array(columns));
    if (run.binned) this.pour(shares, rank, span);
    else for (let i = first; i < run.offsets[rank + 1] && run.start[i] < this.to; i++) {
      spread(shares[run.kind[i]], (run.start[i] - this.from) / span, (run.end[i] - this.from) / span, 1);
    }
    for (let c = 0; c < columns; c++) {
      let low = top + this.rowHeight;
      for (let kind = 0; kind < 4; kind++) {
        const tall = shares[kind][c] * this.rowHeight;
        if (!tall) continue;
        pen.fillStyle = look[KINDS[kind]];
        pen.fillRect(LABEL_WIDTH + c * COLUMN, low - tall, COLUMN, tall);
        low -= tall;
      }
    }
  }

  // Binned data: `shares[kind]` holds ranks x bins busy shares of equal bins of the window.
  pour(shares, rank, span) {
    const { run } = this, bins = run.bins, wide = run.window / bins;
    for (let kind = 0; kind < 4; kind++) for (let b = 0; b < bins; b++) {
      const share = run.shares[kind][rank * bins + b];
      if (share) spread(shares[kind], (b * wide - this.from) / span, ((b + 1) * wide - this.from) / span, share);
    }
  }

  drawAxis(pen, height) {
    const step = niceStep((this.to - this.from) / Math.max(2, this.width / 90));
    pen.fillStyle = this.look.text;
    pen.strokeStyle = this.look.line;
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      const x = this.x(t);
      pen.beginPath();
      pen.moveTo(x, height - AXIS);
      pen.lineTo(x, height - AXIS + 4);
      pen.stroke();
      pen.fillText(duration(t), Math.min(x + 2, LABEL_WIDTH + this.width - 44), height - AXIS / 2 + 2);
    }
  }

  // What is at a place: an op, or a gap with what it waits for.
  explain(rank, time) {
    const { run } = this;
    if (run.binned) return `rank ${rank} at ${duration(time)}: this run has too many ops to name one`;
    const i = this.find(rank, time), last = run.offsets[rank + 1];
    if (i < last && run.start[i] <= time) {
      const kind = KINDS[run.kind[i]];
      return `${this.name(i)}, ${KIND_WORDS[kind]} of stage ${run.stage[i]}, micro-batch ${run.unit[i]}, on rank ${rank}: `
        + `${duration(run.end[i] - run.start[i])}, from ${duration(run.start[i])} to ${duration(run.end[i])}`;
    }
    const begin = i > run.offsets[rank] ? run.end[i - 1] : 0;
    if (i === last) return `rank ${rank} is done; it idles ${duration(run.window - begin)} until the step ends (cool-down)`;
    const word = i === run.offsets[rank] ? "warms up" : "waits";
    return `rank ${rank} ${word} ${duration(run.start[i] - begin)} for ${this.blame(i, rank)}`;
  }

  blame(i, rank) {
    const need = this.need(i);
    if (need < 0) return `its own host before ${this.name(i)}: no input is missing`;
    const from = this.rankOf(need), { run } = this;
    if (from === rank) return `its own host before ${this.name(i)}: the input was made on this rank`;
    const way = run.start[i] - run.end[need];
    return `${this.name(need)} on rank ${from}, which ends at ${duration(run.end[need])}`
      + (way > 0 ? `; its result is on its way for ${duration(way)}` : "") + `. An earlier ${this.name(need)} would end the wait.`;
  }

  // The op whose result op i takes from another stage.
  need(i) {
    const { run } = this, kind = KINDS[run.kind[i]], stage = run.stage[i];
    if (kind === "F") return stage ? this.locate("F", stage - 1, run.unit[i]) : -1;
    if (kind === "W") return -1;
    return stage < run.stages - 1 ? this.locate("IB", stage + 1, run.unit[i]) : -1;
  }

  locate(kinds, stage, unit) {
    if (!this.index) {
      this.index = new Map();
      const { run } = this;
      for (let i = 0; i < run.kind.length; i++) {
        const line = run.kind[i] === 0 ? "F" : run.kind[i] === 2 ? "W" : "IB";
        this.index.set(`${line} ${run.stage[i]} ${run.unit[i]}`, i);
      }
    }
    return this.index.get(`${kinds} ${stage} ${unit}`) ?? -1;
  }

  rankOf(i) { return this.run.offsets.findIndex((first, r) => first <= i && i < this.run.offsets[r + 1]); }

  name(i) { return `${this.run.stage[i]}${KINDS[this.run.kind[i]]}${this.run.unit[i]}`; }

  zoom(factor, around) {
    const span = Math.min(this.axis, Math.max(1000, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.place(around - share * span, span);
  }

  place(from, span) {
    this.from = Math.max(0, Math.min(from, this.axis - span));
    this.to = this.from + span;
    this.draw();
    this.moved?.(this);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : .8, this.time(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      this.grip = { x: event.offsetX, from: this.from };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { this.grip = null; });
    canvas.addEventListener("pointermove", event => this.hover(event));
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", event => this.key(event));
  }

  hover(event) {
    if (this.grip) {
      const span = this.to - this.from;
      this.place(this.grip.from - (event.offsetX - this.grip.x) / this.width * span, span);
      return;
    }
    const rank = Math.floor(event.offsetY / (this.rowHeight + ROW_GAP)), time = this.time(event.offsetX);
    if (rank >= this.run.ranks || time < 0 || time > this.run.window) { this.tip.hidden = true; return; }
    this.say(rank, time, event.offsetX, event.offsetY);
  }

  say(rank, time, x, y) {
    this.tip.textContent = this.explain(rank, time);
    this.tip.hidden = false;
    this.tip.style.left = Math.max(0, Math.min(x + 12, this.canvas.clientWidth - this.tip.offsetWidth - 4)) + "px";
    this.tip.style.top = (y + 16) + "px";
  }

  key(event) {
    const span = this.to - this.from, middle = this.from + span / 2;
    const act = {
      "+": () => this.zoom(.5, middle), "=": () => this.zoom(.5, middle), "-": () => this.zoom(2, middle),
      "0": () => this.place(0, this.axis),
      ArrowLeft: () => this.place(this.from - span / 5, span), ArrowRight: () => this.place(this.from + span / 5, span),
      n: () => this.step(1), p: () => this.step(-1),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // The next or previous of the longest gaps, said in the tip, for those who do not point.
  step(by) {
    const { run } = this;
    if (run.binned) return;
    if (!this.gaps) {
      this.gaps = [];
      for (let r = 0; r < run.ranks; r++) for (let i = run.offsets[r] + 1; i < run.offsets[r + 1]; i++) {
        if (run.start[i] > run.end[i - 1]) this.gaps.push([r, run.end[i - 1], run.start[i]]);
      }
      this.gaps = this.gaps.sort((a, b) => b[2] - b[1] - (a[2] - a[1])).slice(0, 50);
      this.gap = -1;
    }
    if (!this.gaps.length) return;
    this.gap = (this.gap + by + this.gaps.length) % this.gaps.length;
    const [rank, begin, end] = this.gaps[this.gap], time = (begin + end) / 2;
    this.say(rank, time, this.x(Math.min(Math.max(time, this.from), this.to)), rank * (this.rowHeight + ROW_GAP));
  }
}

// Adds a stretch of columns, its ends in part.
function spread(column, from, to, weight) {
  const first = Math.max(0, Math.floor(from)), last = Math.min(column.length - 1, Math.floor(to));
  for (let c = first; c <= last; c++) column[c] += weight * Math.max(0, Math.min(to, c + 1) - Math.max(from, c));
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map(n => n * power).find(step => step >= least);
}

function duration(ns) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, n]) => Math.abs(ns) >= n) ?? ["ns", 1];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

// Colours and hatches from the style sheet, so that light, dark and print agree.
function palette(pen) {
  const style = getComputedStyle(document.documentElement), look = { hatch: {} };
  for (const name of ["page", "text", "line", "idle", "F", "I", "W", "B", "onF", "onI", "onW", "onB"]) {
    look[name] = style.getPropertyValue("--" + name).trim();
  }
  for (const kind of KINDS) look.hatch[kind] = hatch(pen, kind, style.getPropertyValue("--hatch").trim());
  return look;
}

// F plain, B diagonal, I a sparse diagonal, W dots.
function hatch(pen, kind, ink) {
  if (kind === "F") return "transparent";
  const tile = document.createElement("canvas"), size = kind === "B" ? 6 : 9;
  tile.width = tile.height = size;
  const on = tile.getContext("2d");
  on.strokeStyle = on.fillStyle = ink;
  if (kind === "W") on.fillRect(size / 2, size / 2, 1.5, 1.5);
  else {
    on.beginPath();
    on.moveTo(0, size);
    on.lineTo(size, 0);
    on.stroke();
  }
  return pen.createPattern(tile, "repeat");
}

if (typeof module !== "undefined") module.exports = { duration, niceStep, spread };
