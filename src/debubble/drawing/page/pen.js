// Ink: a canvas at the screen's resolution, colours and hatches from the style sheet, labels, and a time axis.
"use strict";

const PLAIN = "11px system-ui, sans-serif", BOLD = "bold 11px system-ui, sans-serif";

function prepare(canvas, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = PLAIN;
  pen.textBaseline = "middle";
  return pen;
}

// Colours from the style sheet, so that light, dark and print agree.
function palette(pen) {
  const style = getComputedStyle(document.documentElement), look = { hatch: {} };
  for (const name of ["page", "text", "soft", "line", "idle", "edge", "ink", "accent", "F", "B", "I", "W", "F2", "B2", "I2", "W2"]) {
    look[name] = style.getPropertyValue(`--${name}`).trim();
  }
  for (const kind of "BIW") look.hatch[kind] = hatch(pen, kind, style.getPropertyValue("--hatch").trim());
  return look;
}

// F plain, B falling lines, I rising lines, W dots: the kinds can be told apart without colour.
function hatch(pen, kind, ink) {
  const tile = document.createElement("canvas"), size = 8;
  tile.width = tile.height = size;
  const on = tile.getContext("2d");
  on.strokeStyle = on.fillStyle = ink;
  if (kind === "W") for (const at of [1, 5]) on.fillRect(at, at, 2, 2);
  else for (const shift of [-size, 0, size]) {
    on.beginPath();
    on.moveTo(shift - 1, kind === "B" ? size + 1 : -1);
    on.lineTo(shift + size + 1, kind === "B" ? -1 : size + 1);
    on.stroke();
  }
  return pen.createPattern(tile, "repeat");
}

// A colour of the style sheet, #rrggbb, as three numbers.
function rgb(colour) {
  return [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
}

// `key`: a kind, with a 2 behind it for later chunks.
function fill(pen, look, key, path, hatched = true) {
  pen.fillStyle = look[key];
  pen.fill(path);
  if (!hatched || !look.hatch[key[0]]) return;
  pen.fillStyle = look.hatch[key[0]];
  pen.fill(path);
}

// Numbers of micro-batches: dark, because every kind is light in both themes.
function drawLabels(pen, look, labels) {
  pen.textAlign = "center";
  pen.fillStyle = look.ink;
  for (const [text, x, y] of labels) pen.fillText(text, x, y);
  pen.textAlign = "left";
}

function drawAxis(pen, look, { from, to, width, y }) {
  const step = niceStep((to - from) / Math.max(2, width / 80));
  pen.fillStyle = look.soft;
  pen.strokeStyle = look.soft;
  pen.textAlign = "center";
  for (let tick = Math.ceil(from / step - 1e-9) * step; tick <= to * (1 + 1e-9); tick += step) {
    const x = LABELS + (tick - from) / (to - from) * width;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x, y + 5);
    pen.stroke();
    pen.fillText(tick ? duration(tick) : "0", x, y + 14);
  }
  pen.textAlign = "left";
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map(n => n * power).find(step => step >= least);
}
