// How many ranks work at once: bursts in which all do, dead zones in which at most half do.
"use strict";

const ZONES = 16, TALL = 84; // pixels: the strip that names bursts and dead zones, the curve below it

class Working {
  constructor(canvas, run, axis) {
    Object.assign(this, { canvas, run, axis });
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get width() { return this.canvas.clientWidth - LABELS - BUSY; }

  x(time) { return LABELS + time / this.axis * this.width; }

  draw() {
    if (!this.canvas.clientWidth) return;
    const pen = prepare(this.canvas, ZONES + TALL + AXIS), look = palette(pen), { run } = this;
    const bottom = ZONES + TALL, right = this.x(run.window);
    pen.fillStyle = look.idle;
    pen.fillRect(LABELS, ZONES, right - LABELS, TALL);
    this.drawCurve(pen, look, bottom);
    this.drawZones(pen, look);
    pen.strokeStyle = look.soft;
    pen.setLineDash([4, 3]);
    pen.strokeRect(LABELS, ZONES + TALL / 2, right - LABELS, 0);
    pen.setLineDash([]);
    pen.fillStyle = look.text;
    for (const [name, share] of [[`all ${run.ranks}`, 1], ["half", .5], ["none", 0]]) pen.fillText(name, 2, bottom - share * TALL + (share === 1 ? 5 : share ? 0 : -4));
    drawAxis(pen, look, { from: 0, to: this.axis, width: this.width, y: bottom });
  }

  // The exact curve where its steps can be seen, else its mean over columns of two pixels.
  drawCurve(pen, look, bottom) {
    const { run } = this, path = new Path2D();
    const bar = (left, right, now) => path.rect(left, bottom - now / run.ranks * TALL, right - left, now / run.ranks * TALL);
    if (run.bins || run.kind.length > this.width / 4) {
      const mean = new Float64Array(Math.ceil(this.width / 2)), scale = mean.length / this.axis;
      for (const { begin, end, working: now } of working(run)) spread(mean, begin * scale, end * scale, now);
      mean.forEach((now, c) => bar(LABELS + 2 * c, LABELS + 2 * c + 2, now));
    } else for (const { begin, end, working: now } of working(run)) bar(this.x(begin), this.x(end), now);
    fill(pen, look, "F", path);
  }

  drawZones(pen, look) {
    for (const { what, begin, end } of zones(this.run)) {
      const left = this.x(begin), wide = this.x(end) - left;
      if (what === "thin" || wide < .5) continue;
      const path = new Path2D();
      path.rect(left, 2, wide, ZONES - 4);
      fill(pen, look, what === "burst" ? "F" : "B", path);
      if (wide < 62) continue;
      pen.fillStyle = look.ink;
      pen.textAlign = "center";
      pen.fillText(what, left + wide / 2, ZONES / 2 + 1);
      pen.textAlign = "left";
    }
  }
}

// The zones in numbers; they sum to the window. Dead zones apart by where they lie.
function zoneRows(run) {
  const half = Math.floor(run.ranks / 2), sums = new Map();
  const names = {
    "burst": `burst: all ${run.ranks} ranks work`, "thin": "thin: some ranks idle", "at the start": `dead zone at the start (fill): ${half} or fewer work`,
    "in between": `dead zones in between: ${half} or fewer work`, "at the end": `dead zone at the end (drain): ${half} or fewer work`,
  };
  for (const { what, begin, end } of zones(run)) {
    const place = what !== "dead zone" ? what : begin === 0 ? "at the start" : end >= run.window ? "at the end" : "in between";
    const sum = sums.get(place) ?? { time: 0, count: 0 };
    sums.set(place, { time: sum.time + end - begin, count: sum.count + 1 });
  }
  return Object.entries(names).filter(([place]) => sums.has(place)).map(([place, name]) => ({ name, ...sums.get(place), share: sums.get(place).time / run.window }));
}
