// The simulator of the page: the same orders and the same longest path as the Python, for sliders that answer at once.
"use strict";

const KINDS = "FIWB";

// Kinds and turns of one rank: warm-up forwards, then forward and backward in turn, then the rest.
function alternate(warmUp, n) {
  const ops = [];
  let f = 0, b = 0;
  for (; f < Math.min(warmUp, n); f++) ops.push(["F", f]);
  for (; f < n; f++, b++) ops.push(["F", f], ["B", b]);
  for (; b < n; b++) ops.push(["B", b]);
  return ops;
}

const BUILDERS = {
  "gpipe": { chunks: false, build: (p, m) => rows(p, r => alternate(m, m).map(([k, i]) => [k, r, i])) },
  "1f1b": { chunks: false, build: (p, m) => rows(p, r => alternate(p - 1 - r, m).map(([k, i]) => [k, r, i])) },
  "interleaved": {
    chunks: true,
    legal: (p, m) => m % p === 0,
    build: (p, m, v) => rows(p, r => alternate(2 * (p - 1 - r) + (v - 1) * p, m * v).map(([k, turn]) => {
      const chunk = Math.floor(turn % (p * v) / p);
      const from = k === "F" ? chunk : v - 1 - chunk;
      return [k, from * p + r, Math.floor(turn / (p * v)) * p + turn % p];
    })),
  },
  // One W whenever more than r of them are pending after an I; the rest at the end.
  "zb-h1": {
    chunks: false,
    build: (p, m) => rows(p, r => {
      const ops = [];
      let done = 0;
      for (const [k, i] of alternate(p - 1 - r, m)) {
        ops.push([k === "B" ? "I" : k, r, i]);
        if (k === "B" && i + 1 - done > r) ops.push(["W", r, done++]);
      }
      for (; done < m; done++) ops.push(["W", r, done]);
      return ops;
    }),
  },
};

function rows(p, row) {
  return Array.from({ length: p }, (_, r) => row(r));
}

// Longest path. `rows`: per rank [kind, stage, micro-batch]; `cost(kind, stage)` and `hop` in any one unit of time.
function simulate(rows, stages, cost, hop) {
  const p = rows.length, at = new Array(p).fill(0), free = new Array(p).fill(0);
  const gradient = new Map(), forward = new Map(), out = rows.map(() => []);
  const key = (s, u) => u * stages + s;
  const home = new Array(stages);
  rows.forEach((row, r) => row.forEach(([, s]) => { home[s] = r; }));
  let left = rows.reduce((n, row) => n + row.length, 0);
  while (left) {
    const before = left;
    for (let r = 0; r < p; r++) {
      for (; at[r] < rows[r].length; at[r]++, left--) {
        const [k, s, u] = rows[r][at[r]];
        const need = k === "F" ? (s ? [forward, s - 1] : null) : k === "W" ? null : s < stages - 1 ? [gradient, s + 1] : [forward, s];
        let start = free[r];
        if (need) {
          const made = need[0].get(key(need[1], u));
          if (made === undefined) break;
          start = Math.max(start, made + (home[need[1]] === r ? 0 : hop));
        }
        const end = free[r] = start + cost(k, s);
        if (k === "F") forward.set(key(s, u), end);
        else if (k !== "W") gradient.set(key(s, u), end);
        out[r].push([start, end]);
      }
    }
    if (left === before) throw new Error("deadlock");
  }
  return out;
}

// What the sliders ask: one schedule, its window, idle share, bubble ratio and peak of activations.
function whatIf({ schedule, ranks, microbatches, chunks = 1, forward, backward, transfer = 0, scale = [] }) {
  const builder = BUILDERS[schedule];
  const v = builder.chunks ? chunks : 1;
  if (builder.legal && !builder.legal(ranks, microbatches)) return null;
  const order = builder.build(ranks, microbatches, v);
  const share = { F: forward / v, B: backward / v, I: backward / 2 / v, W: backward / 2 / v };
  const times = simulate(order, ranks * v, (k, s) => share[k] * (scale[s % ranks] ?? 1), transfer);
  let window = 0, busy = 0, peak = 0;
  times.forEach((row, r) => {
    let held = 0;
    row.forEach(([start, end], i) => {
      window = Math.max(window, end);
      busy += end - start;
      const k = order[r][i][0];
      held += k === "F" ? 1 : k === "I" ? 0 : -1;
      peak = Math.max(peak, held / v);
    });
  });
  return { order, times, window, idleShare: 1 - busy / (ranks * window), bubbleRatio: ranks * window / busy - 1, peak, busy };
}

if (typeof module !== "undefined") module.exports = { BUILDERS, KINDS, simulate, whatIf };
