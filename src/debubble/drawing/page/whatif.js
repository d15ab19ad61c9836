// What if: sliders that cut the same model anew, simulate it at once, and say what that means per sample, per GPU and for memory.
"use strict";

const MOST_OPS = 60000; // that a slider may ask for: the answer comes within a frame or a few

class WhatIf {
  constructor(section, base) {
    Object.assign(this, { section, base });
    this.own = !base.built.includes(base.schedule) || !build(base.schedule, base.ranks, base.microbatches, base.chunks);
    this.controls = make("div", section, undefined, { class: "controls" });
    this.inputs = this.makeInputs();
    make("button", this.controls, "Back to how it is", { type: "button", name: "reset" }).addEventListener("click", () => this.reset());
    this.answer = make("p", section, undefined, { "aria-live": "polite", id: "answer" });
    this.table = make("div", section, undefined, { class: "wide" });
    make("p", section, base.note, { class: "note" });
    const [canvas, tip] = picture(section, "Timeline of the simulated change; its numbers are in the table above");
    this.view = new Timeline(canvas, tip, runOf([], [], { window: 1, stages: 1 }), 1);
    this.now = answerOf(base);
    this.controls.addEventListener("input", () => this.recompute());
    this.recompute();
  }

  makeInputs() {
    const { base } = this, most = Math.max(base.microbatches, Math.min(Math.max(64, 4 * base.microbatches), Math.floor(MOST_OPS / 3 / base.ranks)));
    const select = make("select", make("label", this.controls, "schedule"), undefined, { name: "schedule" });
    if (this.own) make("option", select, `${base.title}, in the order it has`, { value: OWN });
    for (const name of base.built) make("option", select, name, { value: name });
    for (const { name } of base.orders) make("option", select, name, { value: name });
    select.value = this.own ? OWN : base.schedule;
    // A hop as a share of a rank's forward: where hops differ, the slider stands at their mean and, until it is moved, takes them as they are.
    const work = base.costs.durations[F].reduce((a, b) => a + b, 0) / base.ranks / base.microbatches || 1, usual = meanHop(base.costs.hops);
    return {
      schedule: { input: select, value: () => select.value },
      microbatches: this.slider("microbatches", "micro-batches per step", { value: base.microbatches, min: 1, max: most }),
      ranks: this.slider("ranks", "ranks: the same model, cut into as many", { value: base.ranks, min: 1, max: Math.max(16, 2 * base.ranks) }),
      chunks: this.slider("chunks", "chunks a rank", { value: base.chunks, min: 1, max: Math.max(8, base.chunks) }),
      transfer: this.slider("transfer", "a hop, % of a rank's forward", { value: 100 * usual / work, min: 0, max: Math.max(100, Math.ceil(200 * usual / work)), step: "any" }, percent => roundEven(percent / 100 * work), null),
      imbalance: this.slider("imbalance", "imbalance between stages that is left, %", { value: 100, min: 0, max: 100 }, percent => percent / 100, 1),
    };
  }

  // `still`: the value as long as the slider was not moved.
  slider(name, text, { value, min, max, step = 1 }, convert = x => x, still = value) {
    const label = make("label", this.controls, text), shown = make("output", label);
    const input = make("input", label, undefined, { type: "range", name, min, max, step });
    input.value = value;
    const first = input.value;
    return { input, first, value: () => {
      shown.textContent = +(+input.value).toPrecision(3);
      return input.value === first ? still : convert(+input.value);
    } };
  }

  read() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, { value }]) => [name, value()]));
  }

  reset() {
    for (const { input, first } of Object.values(this.inputs)) if (first !== undefined) input.value = first;
    this.inputs.schedule.input.value = this.own ? OWN : this.base.schedule;
    this.recompute();
  }

  recompute() {
    const wish = this.read(), { base } = this, free = base.built.includes(wish.schedule);
    for (const name of ["microbatches", "ranks"]) this.inputs[name].input.disabled = !free;
    this.inputs.chunks.input.disabled = !free || !BUILDERS[wish.schedule].chunks;
    if (free) wish.chunks = BUILDERS[wish.schedule].chunks ? this.atLeastTwo() : 1;
    const ops = free ? 3 * wish.ranks * wish.microbatches * wish.chunks : 0, asked = ops <= 2 * MOST_OPS ? slide(base, wish) : undefined;
    if (!asked) {
      this.answer.textContent = asked === undefined ? "That is too much for a page: use debubble show." : refusal(wish);
      globalThis.debubble.answer = null;
      return;
    }
    const then = answerOf(asked), numbers = compare(base, asked, then, this.now);
    globalThis.debubble.answer = { ...wish, ...numbers };
    this.say(asked, numbers);
    this.view.show(runOf(asked.order, then.times, { window: then.window, stages: asked.stages, slices: base.slices, chunks: asked.parts }), then.window);
  }

  // Chunks of a schedule that has several: the slider goes to two where it stood at one.
  atLeastTwo() {
    const { input, value } = this.inputs.chunks;
    if (+input.value < 2) input.value = 2;
    return value();
  }

  say(asked, then) {
    const { base, now } = this, before = compare(base, base, now, now);
    this.answer.textContent = sentence(then);
    const line = (name, show) => [name, show(before), show(then)];
    this.table.replaceChildren();
    table(this.table, ["simulated", "as it is", "with the change"], [
      line("pipeline window", n => duration(n.window)), line("idle share = idle / all", n => percent(n.idleShare)),
      line("bubble ratio = idle / busy", n => percent(n.bubbleRatio)), line("time per micro-batch", n => duration(n.perSample)),
      line("samples per second of a pipeline", n => times(n.speedup)), line("samples per second of a GPU", n => times(n.perGpu)),
      line("activations in flight on the worst rank, in its micro-batches", n => String(+n.peak.toFixed(2))), line("memory of activations on the worst rank", n => `${n.memory.toFixed(2)} x`),
    ]);
  }
}

function meanHop(hops) {
  let sum = 0, count = 0;
  for (const kind of [F, I, B]) for (const hop of hops[kind]) if (hop > 0) [sum, count] = [sum + hop, count + 1];
  return count ? sum / count : 0;
}

const times = ratio => Number.isFinite(ratio) ? `${ratio.toFixed(2)} x` : "no time passes";

// The change in one sentence; where nothing takes any time there is no speed to compare.
function sentence(then) {
  const more = then.memory > 1.005 ? `, for ${then.memory.toFixed(2)} times the memory of activations` : then.memory < .995 ? `, with ${then.memory.toFixed(2)} times the memory of activations` : ", in the same memory";
  const gain = Number.isFinite(then.perGpu) ? `${then.perGpu.toFixed(2)} times the samples per second of a GPU` : "No time passes, so samples per second cannot be compared";
  return `${gain}${more} (simulated): idle share ${percent(then.idleShare)}, bubble ratio ${percent(then.bubbleRatio)}.`;
}

function refusal({ schedule, microbatches, ranks }) {
  const least = schedule === "interleaved" ? ranks : Math.floor(microbatches / ranks), below = Math.floor(microbatches / least) * least;
  return `${schedule} takes micro-batches in multiples of ${least}: nearest ${below ? `${below} or ` : ""}${below + least}.`;
}

if (typeof module !== "undefined") {
  Object.assign(globalThis, require("./simulate.js"), require("./run.js"), require("./slide.js"));
  module.exports = { sentence };
}
