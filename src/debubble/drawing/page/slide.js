// What the sliders ask: the edits of diagnosis/replay.py by the rules at its head, so that a page never says another number
// than the verdict above it. `base`: the run as it is, {schedule, ranks, microbatches, chunks, slices, stages, placement, outside,
// pairScale, orders} with its own order and costs, as `baseOf` makes it.
"use strict";

const OWN = "own"; // the order of the run, as it is

// The base of a page: costs of each op of a run, spread out by stage and unit; 0 where the order has no such op.
async function baseOf(data, run) {
  const all = new Float64Array(await inflate(data.columns)), n = run.kind.length, columns = data.microbatches * data.slices;
  const [durations, hops] = [0, n].map(from => {
    const table = [0, 1, 2, 3].map(() => new Float64Array(data.stages * columns));
    for (let i = 0; i < n; i++) table[run.kind[i]][run.stage[i] * columns + run.unit[i]] = all[from + i];
    return table;
  });
  const orders = await Promise.all(data.orders.map(async each => ({ ...each, order: await unpackOrder(each) })));
  return { ...data, orders, order: orderOf(run), costs: { columns, durations, hops } };
}

async function unpackOrder({ offsets, columns }) {
  const n = offsets.at(-1), view = new Uint32Array(await inflate(columns));
  const [what, stage, unit] = [0, 1, 2].map(k => view.subarray(k * n, (k + 1) * n));
  for (let i = 1; i < n; i++) unit[i] += unit[i - 1];
  return orderOf({ ranks: offsets.length - 1, offsets, kind: what.map(bits => bits & 3), joined: what.map(bits => bits & JOINED), stage, unit });
}

// What is asked as an order with its costs, to be simulated; null where the schedule does not take these sizes.
// `transfer`: null for hops as they are. `imbalance`: share of each stage's distance from the mean that is left.
function slide(base, { schedule = OWN, ranks = base.ranks, microbatches = base.microbatches, chunks = base.chunks, transfer = null, imbalance = 1 }) {
  const moved = ranks !== base.ranks || microbatches !== base.microbatches || chunks !== base.chunks;
  let asked = base;
  if (schedule !== OWN && (schedule !== base.schedule || moved)) {
    const target = targetOf(base, schedule, ranks, microbatches, chunks);
    if (!target) return null;
    asked = { ...base, ...target, costs: recast(base, target) };
  }
  if (imbalance !== 1) asked = { ...asked, costs: { ...asked.costs, durations: balanced(asked, imbalance) } };
  if (transfer !== null) asked = { ...asked, costs: { ...asked.costs, hops: asked.costs.hops.map(line => line.map(() => transfer)) } };
  return asked;
}

// An order that the page can build, or one that came with it: these are of the run's own ranks and micro-batches.
function targetOf(base, name, ranks, microbatches, chunks) {
  const given = base.orders.find(each => each.name === name);
  if (given) return { ...given, schedule: given.catalog, microbatches: base.microbatches, ranks: base.ranks };
  const v = BUILDERS[name].chunks ? chunks : 1, order = build(name, ranks, microbatches, v);
  if (!order) return null;
  const placement = [Array.from({ length: ranks * v }, (_, stage) => stage % ranks)];
  return { schedule: name, order, placement, ranks, microbatches, chunks: v, stages: ranks * v, parts: v };
}

// Rule 2: the same work on other stages, in other micro-batches, in two parts or as a whole.
function recast(base, target) {
  const { costs } = base, columns = target.microbatches * base.slices, samePlaces = JSON.stringify(base.placement) === JSON.stringify(target.placement);
  const widened = table => table.map(line => widen(line, base.stages, costs.columns, columns));
  let work = widened(costs.durations);
  if (!samePlaces) work = work.map(line => onStages(line, base, target, columns));
  const parts = { [I]: base.inputShare, [W]: 1 - base.inputShare };
  const durations = [F, I, W, B].map(kind => work[kind].map((_, at) => roundEven(
    kind === F ? work[F][at] : kind === B ? work[B][at] + work[I][at] + work[W][at] : work[kind][at] + work[B][at] * parts[kind])));
  const hops = samePlaces && target.schedule === base.schedule ? widened(costs.hops) : usualHops(costs.hops, target.stages * columns);
  return { columns, durations, hops };
}

// Rule 2a: a multiple of the micro-batches repeats them; any other number has the mean of all.
function widen(line, stages, from, to) {
  const out = new Float64Array(stages * to);
  for (let stage = 0; stage < stages; stage++) {
    const mine = line.subarray(stage * from, (stage + 1) * from), mean = to % from ? roundEven(mine.reduce((a, b) => a + b, 0) / from) : 0;
    for (let unit = 0; unit < to; unit++) out[stage * to + unit] = to % from ? mean : mine[unit % from];
  }
  return out;
}

// Rule 2b: a rank keeps its work and shares it out evenly over its stages; for other ranks the model is cut anew along its depth.
function onStages(line, here, there, columns) {
  const out = new Float64Array(there.stages * columns);
  const add = (stage, old, part) => { for (let unit = 0; unit < columns; unit++) out[stage * columns + unit] += part * line[old * columns + unit]; };
  const divide = (stage, by) => { for (let unit = 0; unit < columns; unit++) out[stage * columns + unit] /= by; };
  const home = there.placement[0];
  for (let stage = 0; stage < there.stages; stage++) {
    if (here.ranks === there.ranks) {
      for (const copy of here.placement) copy.forEach((rank, old) => { if (rank === home[stage]) add(stage, old, 1); });
      divide(stage, here.placement.length * home.filter(rank => rank === home[stage]).length);
    } else {
      for (let old = 0; old < here.stages; old++) {
        const overlap = Math.min((old + 1) * there.stages, (stage + 1) * here.stages) - Math.max(old * there.stages, stage * here.stages);
        if (overlap > 0) add(stage, old, overlap);
      }
      divide(stage, there.stages);
    }
  }
  return out;
}

// Rule 2d: one delay for every hop forward and one for every hop back, the means of what the run shows.
function usualHops(hops, size) {
  const [forward, back] = [[F], [I, B]].map(kinds => {
    let sum = 0, count = 0;
    for (const kind of kinds) for (const hop of hops[kind]) if (hop > 0) [sum, count] = [sum + hop, count + 1];
    return count ? roundEven(sum / count) : 0;
  });
  return [forward, back, 0, back].map(hop => new Float64Array(size).fill(hop));
}

// Rule 3: the stages nearer to their mean; 1 leaves them as they are, 0 makes them equal. Means are over stages that have such an op.
function balanced({ order, stages, costs: { columns, durations } }, left) {
  const there = [0, 1, 2, 3].map(() => new Uint8Array(stages * columns));
  for (const row of order) for (const [kind, stage, unit] of row) there[kind][stage * columns + unit] = 1;
  return durations.map((line, kind) => {
    const out = new Float64Array(stages * columns);
    for (let unit = 0; unit < columns; unit++) {
      let sum = 0, count = 0;
      for (let at = unit; at < out.length; at += columns) if (there[kind][at]) [sum, count] = [sum + line[at], count + 1];
      const mean = sum / Math.max(1, count);
      for (let at = unit; at < out.length; at += columns) out[at] = roundEven(mean + ((there[kind][at] ? line[at] : 0) - mean) * left);
    }
    return out;
  });
}

// Rule 5: then against now, per sample; a step holds more than its window.
function compare(base, asked, then, now) {
  const before = now.window + base.outside, after = then.window + base.outside;
  const speedup = after ? asked.microbatches / base.microbatches * before / after : now.window ? Infinity : NaN;
  return {
    window: then.window, idleShare: then.idleShare, bubbleRatio: then.bubbleRatio, peak: then.peak, perSample: after / asked.microbatches, speedup,
    perGpu: speedup * base.ranks / asked.ranks, memory: now.peak ? then.peak * base.ranks / asked.ranks / now.peak : 1,
  };
}

// An asked order, simulated.
function answerOf(asked) {
  return whatIf({ ...asked, chunks: asked.parts });
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./simulate.js"), require("./run.js"));
  module.exports = { OWN, answerOf, balanced, baseOf, compare, onStages, slide };
}
