// What can be taken along: the run as a trace for ui.perfetto.dev, as a schedule for PyTorch, as a table of ops.
"use strict";

const SLICES = ["forward", "input gradient", "weight gradient", "backward"];

// Chrome's trace format: ops and gaps tile each thread, every gap says what it waits for, an arrow is a transfer.
function perfettoTrace(run, title) {
  const events = [{ ph: "M", pid: 0, tid: 0, name: "process_name", args: { name: title } }];
  const slice = (tid, start, end, cat, name, args) => events.push({ ph: "X", pid: 0, tid, ts: start / 1000, dur: (end - start) / 1000, cat, name, args });
  for (let rank = 0; rank < run.ranks; rank++) {
    events.push({ ph: "M", pid: 0, tid: rank, name: "thread_name", args: { name: `rank ${rank}` } });
    events.push({ ph: "M", pid: 0, tid: rank, name: "thread_sort_index", args: { sort_index: rank } });
    for (let i = run.offsets[rank]; i <= run.offsets[rank + 1]; i++) {
      const gap = gapBefore(run, rank, i);
      if (gap) sliceGap(run, gap, slice);
      if (i < run.offsets[rank + 1] && !run.joined[i]) sliceOp(run, rank, i, slice);
    }
  }
  arrows(run, events);
  return `{"displayTimeUnit":"ns","traceEvents":[\n${events.map(event => JSON.stringify(event)).join(",\n")}\n]}\n`;
}

function sliceOp(run, rank, i, slice) {
  const args = { stage: run.stage[i], microbatch: Math.floor(run.unit[i] / (run.slices ?? 1)) };
  if (i + 1 < run.offsets[rank + 1] && run.joined[i + 1]) slice(rank, run.start[i], run.end[i + 1], "overlapped", `(${opName(run, i)};${opName(run, i + 1)})`, args);
  else slice(rank, run.start[i], run.end[i], SLICES[run.kind[i]], opName(run, i), args);
}

function sliceGap(run, { rank, begin, end, what, op, made }, slice) {
  const reason = op < 0 ? {} : { waits_for: opName(run, op), of: `rank ${rankOf(run, op)}` };
  if (what !== "waiting") {
    const name = what === "idle" ? "warm-up" : what;
    slice(rank, begin, end, name, name, reason);
    return;
  }
  const middle = Math.min(Math.max(made, begin), end);
  if (middle > begin) slice(rank, begin, middle, "waiting", op < 0 ? "waiting for the host" : `waiting for ${opName(run, op)}`, reason);
  if (end > middle) slice(rank, middle, end, "transfer", `transfer of ${opName(run, op)}`, reason);
}

// A flow for each transfer, from the last nanosecond of one slice to the first of the other.
function arrows(run, events) {
  let id = 0;
  for (let i = 0; i < run.kind.length; i++) {
    const need = needOf(run, i), rank = rankOf(run, i);
    if (need < 0 || rankOf(run, need) === rank) continue;
    const same = { pid: 0, cat: "transfer", name: run.kind[i] === F ? "activations" : "gradients", id: id++ };
    const from = run.joined[need] ? run.start[need - 1] : run.start[need], used = run.joined[i] ? run.start[i - 1] : run.start[i];
    events.push({ ph: "s", ...same, tid: rankOf(run, need), ts: Math.max(leaves(run, need) - 1, from) / 1000 });
    events.push({ ph: "f", bp: "e", ...same, tid: rank, ts: used / 1000 });
  }
}

// A row a rank, a cell a slot.
function torchCsv(run) {
  return orderOf(run).map((row, rank) => {
    const cells = [];
    row.forEach(([, , , joined], k) => {
      const name = opName(run, run.offsets[rank] + k);
      if (joined) cells[cells.length - 1] = `(${cells.at(-1)};${name})OVERLAP_F_B`;
      else cells.push(name);
    });
    return cells.join(",") + "\n";
  }).join("");
}

function opsCsv(run) {
  const lines = ["rank,op,kind,stage,microbatch,start_ns,end_ns"];
  for (let i = 0; i < run.kind.length; i++) {
    const microbatch = Math.floor(run.unit[i] / (run.slices ?? 1));
    lines.push([rankOf(run, i), opName(run, i), KINDS[run.kind[i]], run.stage[i], microbatch, run.start[i], run.end[i]].join(","));
  }
  return lines.join("\n") + "\n";
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./simulate.js"), require("./run.js"));
  module.exports = { opsCsv, perfettoTrace, torchCsv };
}
