// The simulator of the page: the orders and the longest path of the Python, to the nanosecond, for sliders that answer at once.
"use strict";

const KINDS = "FIWB";
const [F, I, W, B] = [0, 1, 2, 3];

// Kinds and turns of one rank: warm-up forwards, then forward and backward in turn, then the backwards that are left.
// With a lag the backward is split, and a W follows whenever more than that many of them are waiting.
function alternate(warmUp, n, lag = null) {
  const ops = [], w = Math.min(warmUp, n);
  let done = 0;
  const back = i => {
    ops.push([lag === null ? B : I, i]);
    if (lag !== null && i + 1 - done > lag) ops.push([W, done++]);
  };
  for (let i = 0; i < w; i++) ops.push([F, i]);
  for (let i = w; i < n; i++) { ops.push([F, i]); back(i - w); }
  for (let i = n - w; i < n; i++) back(i);
  if (lag !== null) while (done < n) ops.push([W, done++]);
  return ops;
}

// `row(p, m, v, r)`: kinds and turns of rank r. `group`: micro-batches that pass a chunk before the next has its turn.
const BUILDERS = {
  "gpipe": { row: (p, m) => alternate(m, m) },
  "1f1b": { row: (p, m, v, r) => alternate(p - 1 - r, m) },
  "eager-1f1b": { row: (p, m, v, r) => alternate(2 * (p - 1 - r), m) },
  "interleaved": { chunks: true, group: p => p, row: (p, m, v, r) => alternate(2 * (p - 1 - r) + (v - 1) * p, m * v) },
  "looped-bfs": { chunks: true, row: (p, m, v) => alternate(m * v, m * v) },
  "interleaved-zb": {
    chunks: true, splits: true, group: (p, m) => m / Math.max(1, Math.floor(m / p)),
    row: (p, m, v, r) => alternate(p - 1 - r + (v - 1) * m / Math.max(1, Math.floor(m / p)), m * v, r),
  },
  "zb-h1": { splits: true, row: (p, m, v, r) => alternate(p - 1 - r, m, r) },
  "zb-h2": { splits: true, row: (p, m, v, r) => alternate(2 * (p - 1 - r), m, 2 * r) },
};

// Ops of each rank in order, [kind, stage, micro-batch] each; null where the schedule does not take these sizes. As in Python
// one chunk counts as not asked for where a schedule has several, so that these begin with two.
function build(name, p, m, v) {
  const { row, chunks, group = (_, n) => n } = BUILDERS[name], size = group(p, m);
  if (!Number.isInteger(size) || m % size || (chunks && v < 2)) return null;
  const round = size * v;
  return Array.from({ length: p }, (_, r) => row(p, m, v, r).map(([kind, turn]) => {
    const inside = turn % round, up = Math.floor(inside / size);
    const chunk = kind === F ? up : v - 1 - up;
    return [kind, chunk * p + r, Math.floor(turn / round) * size + inside % size];
  }));
}

// Longest path: each rank runs its ops in order, each as soon as what it needs from another stage has come.
// An op may carry a fourth entry: it then runs together with the op before it, and both end at the end of both.
// Costs: `durations[kind]` and `hops[kind]`, whole nanoseconds of each stage and unit, at stage x columns + unit.
// Start and end of each op, per rank; throws where ranks wait for ever.
function simulate(order, stages, { durations, hops, columns }, pairScale = 1) {
  const units = 1 + Math.max(0, ...order.map(row => row.reduce((most, op) => Math.max(most, op[2]), 0)));
  const made = [0, 1].map(() => new Float64Array(stages * units).fill(-1)), home = [new Int32Array(stages * units), new Int32Array(stages * units)];
  const at = order.map(() => 0), free = order.map(() => 0), out = order.map(() => []);
  order.forEach((row, r) => row.forEach(([kind, s, u]) => { if (kind !== W) home[kind === F ? 0 : 1][u * stages + s] = r; }));
  // When the input of an op has come to rank r: at once where it needs none, -1 where it has not been made yet.
  const come = ([kind, s, u], r) => {
    const from = kind === F ? s - 1 : s + 1, side = kind === F ? 0 : 1;
    if (kind === W || from < 0 || from >= stages) return 0;
    const key = u * stages + from, end = made[side][key];
    return end < 0 || home[side][key] === r ? end : end + hops[kind][s * columns + u];
  };
  const turn = r => {
    const slot = [order[r][at[r]]];
    if (order[r][at[r] + 1]?.[3]) slot.push(order[r][at[r] + 1]);
    const inputs = slot.map(op => come(op, r));
    if (inputs.includes(-1)) return false;
    const spent = slot.reduce((sum, [kind, s, u]) => sum + durations[kind][s * columns + u], 0), start = Math.max(free[r], ...inputs);
    const end = free[r] = start + (slot.length > 1 ? roundEven(spent * pairScale) : spent);
    for (const [kind, s, u] of slot) {
      if (kind !== W) made[kind === F ? 0 : 1][u * stages + s] = end;
      out[r].push([start, end]);
    }
    at[r] += slot.length;
    return true;
  };
  for (let moved = true; moved;) {
    moved = false;
    for (let r = 0; r < order.length; r++) while (at[r] < order[r].length && turn(r)) moved = true;
  }
  if (order.some((row, r) => at[r] < row.length)) throw new Error("ranks wait for each other for ever");
  return out;
}

// The window of an order, its idle share, bubble ratio and the most activations that a rank holds.
// `chunks`: parts in which a rank holds a micro-batch, beside the slices of its sequence.
function whatIf({ order, stages, costs, pairScale = 1, chunks = 1, slices = 1 }) {
  const times = simulate(order, stages, costs, pairScale), ranks = order.length;
  const kept = order.some(row => row.some(op => op[0] !== F)) ? 1 : 0; // inference keeps nothing for a backward
  let window = 0, busy = 0, most = 0;
  times.forEach((row, r) => {
    let held = 0;
    row.forEach(([start, end], i) => {
      const [kind, , , joined] = order[r][i];
      window = Math.max(window, end);
      busy += joined ? 0 : end - start;
      held += kind === F ? kept : kind === I ? 0 : -1;
      most = Math.max(most, held);
    });
  });
  const all = window * ranks, idleShare = all ? 1 - busy / all : 1, bubbleRatio = busy ? (all - busy) / busy : Infinity;
  return { times, window, busy, idleShare, bubbleRatio, peak: most / (slices * chunks) };
}

function roundEven(x) {
  const low = Math.floor(x), rest = x - low;
  return rest > .5 || (rest === .5 && low % 2) ? low + 1 : low;
}

if (typeof module !== "undefined") module.exports = { BUILDERS, F, I, W, B, KINDS, alternate, build, roundEven, simulate, whatIf };
