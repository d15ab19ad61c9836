// A run of the page: its ops as columns, what each op needs, and every gap in words: what it waits for, until when, what would end it.
"use strict";

const KIND_WORDS = ["forward", "input gradient", "weight gradient", "backward"];
const JOINED = 4, LATER = 8; // flags beside the kind: runs together with the op before it; of a later chunk of its rank

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

// Columns of a run as it stands in the page: ops, or the busy shares of equal bins where there are too many ops.
async function unpack(run) {
  const buffer = await inflate(run.columns);
  if (run.bins) {
    const all = new Float32Array(buffer), size = run.ranks * run.bins;
    run.shares = [0, 1, 2, 3].map(kind => all.subarray(kind * size, (kind + 1) * size));
    return run;
  }
  const n = run.offsets[run.ranks], view = new Uint32Array(buffer);
  const [what, stage, unit, gap, length] = [0, 1, 2, 3, 4].map(k => view.subarray(k * n, (k + 1) * n));
  Object.assign(run, { stage, unit, kind: what.map(bits => bits & 3), joined: what.map(bits => bits & JOINED), later: what.map(bits => bits & LATER) });
  run.start = new Float64Array(n);
  run.end = new Float64Array(n);
  for (let rank = 0; rank < run.ranks; rank++) {
    let free = 0;
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) {
      run.start[i] = (free += gap[i]) * run.quantum;
      run.end[i] = (free += length[i]) * run.quantum;
    }
  }
  return run;
}

// The order of a run, as the simulator takes it.
function orderOf(run) {
  return Array.from({ length: run.ranks }, (_, rank) => {
    const row = [];
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) row.push([run.kind[i], run.stage[i], run.unit[i], run.joined[i] > 0]);
    return row;
  });
}

// A simulated order with its times, as a run.
function runOf(order, times, { window, stages, slices = 1 }) {
  const n = order.reduce((sum, row) => sum + row.length, 0), run = { ranks: order.length, stages, slices, window, offsets: [0] };
  for (const name of ["kind", "joined", "later"]) run[name] = new Uint8Array(n);
  for (const name of ["stage", "unit"]) run[name] = new Uint32Array(n);
  for (const name of ["start", "end"]) run[name] = new Float64Array(n);
  let i = 0;
  order.forEach((row, rank) => {
    const lowest = row[0]?.[1];
    row.forEach(([kind, stage, unit, joined], k) => {
      run.kind[i] = kind;
      run.stage[i] = stage;
      run.unit[i] = unit;
      run.joined[i] = joined ? JOINED : 0;
      run.later[i] = stage !== lowest ? LATER : 0;
      [run.start[i], run.end[i]] = times[rank][k];
      if (joined) run.end[i - 1] = run.start[i] = (run.start[i] + run.end[i]) / 2;
      i++;
    });
    run.offsets.push(i);
  });
  return run;
}

function opName(run, i) {
  const unit = run.unit[i], slices = run.slices ?? 1;
  const which = slices > 1 ? `${Math.floor(unit / slices)}.${unit % slices}` : unit;
  return `${run.stage[i]}${KINDS[run.kind[i]]}${which}`;
}

function rankOf(run, i) {
  let low = 0, high = run.ranks;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (run.offsets[middle] <= i) low = middle; else high = middle;
  }
  return low;
}

// First op of a rank that ends after a time.
function firstAfter(run, rank, time) {
  let low = run.offsets[rank], high = run.offsets[rank + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.end[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

// The op whose result op i takes from another stage, -1 where there is none.
function needOf(run, i) {
  run.index ??= indexOf(run);
  const kind = run.kind[i], from = run.stage[i] + (kind === F ? -1 : 1);
  if (kind === W || from < 0 || from >= run.stages) return -1;
  return run.index[kind === F ? 0 : 1].get(run.unit[i] * run.stages + from) ?? -1;
}

function indexOf(run) {
  const index = [new Map(), new Map()];
  for (let i = 0; i < run.kind.length; i++) {
    if (run.kind[i] !== W) index[run.kind[i] === F ? 0 : 1].set(run.unit[i] * run.stages + run.stage[i], i);
  }
  return index;
}

// When the output of an op leaves: at its end, or at that of the pair it belongs to.
const leaves = (run, i) => run.joined[i + 1] && i + 1 < run.kind.length ? run.end[i + 1] : run.end[i];

// The input from another rank that the slot of op i got last: its op, and when it was made; op -1 where it needs none.
function lastInput(run, i) {
  const rank = rankOf(run, i), slot = run.joined[i + 1] && i + 1 < run.offsets[rank + 1] ? [i, i + 1] : [i];
  const needs = slot.map(op => needOf(run, op)).filter(op => op >= 0 && rankOf(run, op) !== rank);
  return needs.reduce((last, op) => last.op < 0 || leaves(run, op) > last.made ? { op, made: leaves(run, op) } : last, { op: -1, made: Infinity });
}

// The gap before op i of a rank (i one past its last op: behind it), null where there is none.
function gapBefore(run, rank, i) {
  const [first, last] = [run.offsets[rank], run.offsets[rank + 1]];
  const begin = i > first ? run.end[i - 1] : 0, end = i < last ? run.start[i] : run.window;
  if (!(end > begin)) return null;
  const what = first === last ? "idle" : i === first ? "warm-up" : i === last ? "cool-down" : "waiting";
  return { rank, next: i < last ? i : -1, begin, end, what, ...(i < last ? lastInput(run, i) : { op: -1, made: Infinity }) };
}

function gapsOf(run) {
  const gaps = [];
  for (let rank = 0; rank < run.ranks; rank++) {
    for (let i = run.offsets[rank]; i <= run.offsets[rank + 1]; i++) {
      const gap = gapBefore(run, rank, i);
      if (gap) gaps.push(gap);
    }
  }
  return gaps;
}

// What is at a place of a timeline, in words.
function explain(run, rank, time) {
  if (run.bins) return explainBin(run, rank, time);
  const i = firstAfter(run, rank, time);
  if (i < run.offsets[rank + 1] && run.start[i] <= time) {
    const slice = run.slices > 1 ? `, slice ${run.unit[i] % run.slices}` : "";
    return `${opName(run, i)}: ${KIND_WORDS[run.kind[i]]} of stage ${run.stage[i]}, micro-batch ${Math.floor(run.unit[i] / (run.slices ?? 1))}${slice}, `
      + `on rank ${rank}; ${duration(run.end[i] - run.start[i])}, from ${duration(run.start[i])} to ${duration(run.end[i])}.`;
  }
  const gap = gapBefore(run, rank, i);
  return gap ? explainGap(run, gap) : "";
}

function explainGap(run, gap) {
  const { rank, next, begin, end, what, op, made } = gap, span = `${duration(end - begin)}, ${duration(begin)} to ${duration(end)}`;
  if (what === "idle") return `rank ${rank} has no ops.`;
  if (what === "cool-down") {
    const last = run.end.indexOf(run.window);
    const until = last < 0 ? "" : ` with ${opName(run, last)} on rank ${rankOf(run, last)}`;
    return `rank ${rank} has no more ops and idles ${span}, when the window ends${until} (cool-down). It ends earlier only if that does.`;
  }
  const name = opName(run, next), verb = what === "warm-up" ? "idles" : "waits";
  if (op < 0) return `rank ${rank} ${verb} ${span}, before ${name}: no input is missing, its own host was late.`;
  const from = rankOf(run, op), need = `${opName(run, op)} on rank ${from}`, way = end - Math.max(made, begin);
  const head = `rank ${rank} ${verb} ${span}${what === "warm-up" ? " (warm-up)" : ""}, before ${name}: it needs ${need}, `;
  if (made <= begin) return `${head}made at ${duration(made)}; the result is on its way until ${duration(end)}. A faster transfer would end the wait.`;
  const tail = way > 0 ? `, and its result is on its way until ${duration(end)}` : "";
  return `${head}which ends at ${duration(made)}${tail}. ${remedy(run, op, from)}`;
}

// Why the op that is waited for was not earlier: its rank worked on something else, or it waited in its turn.
function remedy(run, op, from) {
  const name = opName(run, op), gap = gapBefore(run, from, op);
  if (!gap && op > run.offsets[from]) return `To end the wait sooner, ${name} must come before ${opName(run, op - 1)} on rank ${from}, or that be shorter.`;
  if (gap && gap.op >= 0) return `${name} itself waited for ${opName(run, gap.op)} on rank ${rankOf(run, gap.op)}.`;
  return `To end the wait sooner, ${name} must be shorter.`;
}

function explainBin(run, rank, time) {
  const bin = Math.min(run.bins - 1, Math.max(0, Math.floor(time / run.window * run.bins)));
  const parts = run.shares.map((share, kind) => [share[rank * run.bins + bin], KIND_WORDS[kind]]).filter(([share]) => share > 0);
  const busy = parts.reduce((sum, [share]) => sum + share, 0);
  const wide = run.window / run.bins;
  return `rank ${rank}, ${duration(bin * wide)} to ${duration((bin + 1) * wide)}: busy ${percent(busy)}`
    + (parts.length ? ` (${parts.map(([share, word]) => `${word} ${percent(share)}`).join(", ")}).` : ".");
}

const percent = share => Number.isFinite(share) ? `${(100 * share).toFixed(1).replace("-0.0", "0.0")} %` : "none: no work"; // as in Python

function duration(ns) {
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, n]) => Math.abs(ns) >= n) ?? ["ms", 1];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

// How many ranks work: stretches of time {begin, end, working} that tile the window; of bins, {working} is a mean.
function working(run) {
  if (run.bins) {
    return Array.from({ length: run.bins }, (_, bin) => {
      let sum = 0;
      for (const share of run.shares) for (let rank = 0; rank < run.ranks; rank++) sum += share[rank * run.bins + bin];
      return { begin: bin * run.window / run.bins, end: (bin + 1) * run.window / run.bins, working: sum };
    });
  }
  const starts = run.start.slice().sort(), ends = run.end.slice().sort(), out = [];
  for (let i = 0, j = 0, begin = 0; j < ends.length;) {
    const time = i < starts.length && starts[i] <= ends[j] ? starts[i] : ends[j];
    if (time > begin && out.at(-1)?.working === i - j) out.at(-1).end = time;
    else if (time > begin) out.push({ begin, end: time, working: i - j });
    begin = Math.max(begin, time);
    if (i < starts.length && starts[i] === time) i++; else j++;
  }
  return out;
}

// Bursts, in which all ranks work; dead zones, in which at most half of them do; what lies between is thin. They tile the window.
function zones(run) {
  const out = [];
  for (const { begin, end, working: now } of working(run)) {
    const what = now > run.ranks - 1e-3 ? "burst" : 2 * now <= run.ranks ? "dead zone" : "thin";
    if (out.at(-1)?.what === what) out.at(-1).end = end;
    else out.push({ what, begin, end });
  }
  return out;
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./simulate.js"));
  module.exports = { duration, explain, gapBefore, gapsOf, inflate, leaves, needOf, opName, orderOf, percent, rankOf, runOf, unpack, working, zones };
}
