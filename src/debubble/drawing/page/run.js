// A run of the page: its ops as columns, what each op needs, and every gap in words: what it waits for, until when, what would end it.
"use strict";

const KIND_WORDS = ["forward", "input gradient", "weight gradient", "backward"];
const JOINED = 4, LATER = 8; // flags beside the kind: runs together with the op before it; of a later chunk of its rank
// What I and W free of the activations of their op, in halves; as in Python's schedule.py.
const FREED = { w: [0, 2], half: [1, 1], i: [2, 0] };

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
  for (let i = 1; i < n; i++) unit[i] += unit[i - 1]; // stored as differences, which repeat where numbers do not
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
function runOf(order, times, { window, stages, slices = 1, chunks = 1 }) {
  const n = order.reduce((sum, row) => sum + row.length, 0), run = { ranks: order.length, stages, slices, window, offsets: [0] };
  run.chunks = order.map(() => chunks);
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
  return run.index[kind === F ? 0 : 1][run.unit[i] * run.stages + from];
}

// Where the forward and the gradient of each stage and micro-batch stand; -1 where there is none.
function indexOf(run) {
  let units = 0;
  for (let i = 0; i < run.unit.length; i++) if (run.unit[i] >= units) units = run.unit[i] + 1;
  const index = [0, 1].map(() => new Int32Array(units * run.stages).fill(-1));
  for (let i = 0; i < run.kind.length; i++) {
    if (run.kind[i] !== W) index[run.kind[i] === F ? 0 : 1][run.unit[i] * run.stages + run.stage[i]] = i;
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

// The longest gaps, the longest first: only these are looked into, whatever their number.
function longestGaps(run, most) {
  const long = new Float64Array(run.kind.length + run.ranks); // the gap before op i of rank r at i + r, and one behind its last
  for (let rank = 0; rank < run.ranks; rank++) {
    const [first, last] = [run.offsets[rank], run.offsets[rank + 1]];
    for (let i = first; i <= last; i++) long[i + rank] = (i < last ? run.start[i] : run.window) - (i > first ? run.end[i - 1] : 0);
  }
  const least = Math.max(long.slice().sort()[Math.max(0, long.length - most)], Number.MIN_VALUE), found = [];
  for (let rank = 0; rank < run.ranks; rank++) {
    for (let i = run.offsets[rank]; i <= run.offsets[rank + 1]; i++) if (long[i + rank] >= least) found.push({ rank, i, long: long[i + rank] });
  }
  return found.sort((a, b) => b.long - a.long).slice(0, most).map(({ rank, i }) => gapBefore(run, rank, i));
}

// How much of each of some equal columns between two times each kind of op fills on a rank, exact; four columns of shares.
function sharesOf(run, rank, from, to, columns) {
  const shares = [0, 1, 2, 3].map(() => new Float64Array(columns)), scale = columns / (to - from);
  if (run.bins) {
    const wide = run.window / run.bins, first = Math.max(0, Math.floor(from / wide)), last = Math.min(run.bins - 1, Math.floor(to / wide));
    for (let kind = 0; kind < 4; kind++) for (let bin = first; bin <= last; bin++) {
      const share = run.shares[kind][rank * run.bins + bin];
      if (share) spread(shares[kind], (bin * wide - from) * scale, ((bin + 1) * wide - from) * scale, share);
    }
    return shares;
  }
  // What ops of a kind fill until an edge is looked up, so that a column costs the same however many ops are in it.
  const filled = run.filled ??= filledOf(run), last = run.offsets[rank + 1], before = [0, 0, 0, 0];
  for (let edge = 0; edge <= columns; edge++) {
    const time = from + edge / scale, i = firstAfter(run, rank, time), runs = i < last && run.start[i] < time ? time - run.start[i] : 0;
    for (let kind = 0; kind < 4; kind++) {
      const until = filled[kind][i + rank] + (runs && run.kind[i] === kind ? runs : 0);
      if (edge) shares[kind][edge - 1] = (until - before[kind]) * scale;
      before[kind] = until;
    }
  }
  return shares;
}

// Time that ops of each kind fill on their rank before op i of rank r, at i + r; one behind the last op of each rank.
function filledOf(run) {
  const filled = [0, 1, 2, 3].map(() => new Float64Array(run.kind.length + run.ranks));
  for (let rank = 0; rank < run.ranks; rank++) {
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) {
      for (let kind = 0; kind < 4; kind++) filled[kind][i + rank + 1] = filled[kind][i + rank];
      filled[run.kind[i]][i + rank + 1] += run.end[i] - run.start[i];
    }
    if (rank + 1 < run.ranks) for (const column of filled) column[run.offsets[rank + 1] + rank + 1] = 0;
  }
  return filled;
}

// Adds a stretch of columns, its ends in part.
function spread(column, from, to, weight) {
  const first = Math.max(0, Math.floor(from)), last = Math.min(column.length - 1, Math.floor(to));
  if (first === last) column[first] += weight * (Math.min(to, first + 1) - Math.max(from, first));
  else for (let c = first; c <= last; c++) column[c] += weight * Math.max(0, Math.min(to, c + 1) - Math.max(from, c));
}

// What the ranks do between two times: shares of each kind over all of them, and what each of them idles.
function measure(run, from, to) {
  const kinds = [0, 0, 0, 0], idle = [];
  for (let rank = 0; rank < run.ranks; rank++) {
    const shares = sharesOf(run, rank, from, to, 1).map(column => column[0]);
    shares.forEach((share, kind) => { kinds[kind] += share / run.ranks; });
    idle.push(1 - shares.reduce((sum, share) => sum + share, 0));
  }
  return { span: to - from, kinds, idle, idleShare: idle.reduce((sum, share) => sum + share, 0) / run.ranks };
}

function measured(run, from, to) {
  const { span, kinds, idle, idleShare } = measure(run, from, to);
  const most = idle.indexOf(Math.max(...idle)), least = idle.indexOf(Math.min(...idle));
  const parts = [F, B, I, W].filter(kind => kinds[kind] > 0).map(kind => `${KIND_WORDS[kind]} ${percent(kinds[kind])}`);
  const apart = run.ranks > 1 ? ` (rank ${most} most, ${percent(idle[most])}; rank ${least} least, ${percent(idle[least])})` : "";
  return `${duration(span)}, from ${duration(from)} to ${duration(to)}: ${[...parts, `idle ${percent(idleShare)}`].join(", ")}${apart}.`;
}

// Activations that a rank holds from each of its ops on, in micro-batches of that rank: a forward takes at its start, what
// frees does so at its end. One run of numbers for all ranks, and the most of each.
function heldOf(run) {
  const [byI, byW] = FREED[run.release ?? "w"], held = new Float32Array(run.kind.length), most = new Float64Array(run.ranks);
  const keeps = run.kind.some(kind => kind !== F); // inference keeps nothing for a backward
  const change = [keeps ? 2 : 0, -byI, -byW, -2];
  for (let rank = 0; rank < run.ranks; rank++) {
    const whole = 2 * (run.slices ?? 1) * Math.max(1, run.chunks[rank]);
    let now = 0;
    for (let i = run.offsets[rank]; i < run.offsets[rank + 1]; i++) {
      now += change[run.kind[i]];
      held[i] = now / whole;
      most[rank] = Math.max(most[rank], held[i]);
    }
  }
  return { held, most };
}

// What a rank holds at a time.
function heldAt(run, rank, time) {
  const { held } = run.held ??= heldOf(run), first = run.offsets[rank];
  let i = firstAfter(run, rank, time); // the op that runs then, or the next one
  if (i < run.offsets[rank + 1] && run.start[i] <= time && run.kind[i] === F) return held[i];
  return i > first ? held[i - 1] : 0;
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
// One after the other, and never all in memory: a run of a million ops has two million of them.
function* working(run) {
  if (run.bins) {
    for (let bin = 0; bin < run.bins; bin++) {
      let sum = 0;
      for (const share of run.shares) for (let rank = 0; rank < run.ranks; rank++) sum += share[rank * run.bins + bin];
      yield { begin: bin * run.window / run.bins, end: (bin + 1) * run.window / run.bins, working: sum };
    }
    return;
  }
  const [starts, ends] = run.edges ??= [run.start.slice().sort(), run.end.slice().sort()];
  let last = null;
  for (let i = 0, j = 0, begin = 0; j < ends.length;) {
    const time = i < starts.length && starts[i] <= ends[j] ? starts[i] : ends[j];
    if (time > begin && last?.working === i - j) last.end = time;
    else if (time > begin) {
      if (last) yield last;
      last = { begin, end: time, working: i - j };
    }
    begin = Math.max(begin, time);
    if (i < starts.length && starts[i] === time) i++; else j++;
  }
  if (last) yield last;
}

// Bursts, in which all ranks work; dead zones, in which at most half of them do; what lies between is thin. They tile the window.
function* zones(run) {
  let last = null;
  for (const { begin, end, working: now } of working(run)) {
    const what = now > run.ranks - 1e-3 ? "burst" : 2 * now <= run.ranks ? "dead zone" : "thin";
    if (last?.what === what) last.end = end;
    else {
      if (last) yield last;
      last = { what, begin, end };
    }
  }
  if (last) yield last;
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./simulate.js"));
  module.exports = { JOINED, duration, heldAt, heldOf, longestGaps, measure, measured, sharesOf, explain, gapBefore, gapsOf, inflate, leaves, needOf, opName, orderOf, percent, rankOf, runOf, unpack, working, zones };
}
