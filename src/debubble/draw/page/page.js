// The page: words and tables from the data, two canvases, and sliders that simulate at once. Text goes in as text, never as HTML.
"use strict";

const $ = selector => document.querySelector(selector);

function make(tag, parent, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

const percent = share => (100 * share).toFixed(1) + " %";

async function unpack(run) {
  const bytes = Uint8Array.from(atob(run.columns), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  if (run.bins) {
    const all = new Float32Array(buffer), size = run.ranks * run.bins;
    run.shares = [0, 1, 2, 3].map(kind => all.subarray(kind * size, (kind + 1) * size));
    run.binned = true;
    return run;
  }
  const n = run.offsets[run.ranks], view = new Uint32Array(buffer);
  const column = k => view.subarray(k * n, (k + 1) * n);
  [run.kind, run.stage, run.unit] = [column(0), column(1), column(2)];
  run.start = Float64Array.from(column(3), t => t * run.quantum);
  run.end = Float64Array.from(column(4), t => t * run.quantum);
  return run;
}

function words(data) {
  document.title = data.title;
  $("h1").textContent = data.title;
  for (const sentence of data.verdict) make("p", $("#verdict"), sentence);
  if (data.next) make("code", make("p", $("#verdict"), "Next: "), data.next);
  for (const tile of data.tiles) {
    const box = make("div", $("#tiles"), undefined, { class: "tile" });
    make("span", box, tile.name);
    make("b", box, tile.value);
    make("span", box, tile.note, { class: "note" });
  }
}

function legend(parent) {
  const box = make("div", parent, undefined, { class: "legend" });
  for (const kind of KINDS) {
    const entry = make("span", box);
    make("i", entry, undefined, { style: `background: var(--${kind})` });
    entry.append(`${kind} ${KIND_WORDS[kind]}`);
  }
  make("i", make("span", box), undefined, { style: "background: var(--idle)" }).parentElement.append("idle");
}

function picture(parent, sentence) {
  const box = make("div", parent, undefined, { class: "picture" });
  const canvas = make("canvas", box, undefined, { role: "img", tabindex: "0", "aria-label": sentence });
  const tip = make("div", box, undefined, { class: "tip", role: "status", "aria-live": "polite" });
  tip.hidden = true;
  return [canvas, tip];
}

function timelines(data) {
  const section = $("#timelines"), axis = Math.max(...data.runs.map(run => run.window));
  legend(section);
  const views = data.runs.map(run => {
    make("p", section, `${run.name}: ${duration(run.window)} (${run.evidence})` + (run.bins ? `; ${run.ops} ops, drawn as shares of ${run.bins} bins` : ""), { class: "note" });
    const [canvas, tip] = picture(section, `Timeline of ${run.name}: ${run.ranks} ranks over ${duration(run.window)}, ${run.sentence}`);
    return new Timeline(canvas, tip, run, axis);
  });
  for (const view of views) view.moved = moved => { // two runs stay on one time axis
    for (const other of views) if (other !== moved) Object.assign(other, { from: moved.from, to: moved.to }).draw();
  };
  globalThis.views = views;
}

// Ranks at work in each of n equal stretches of time.
function working(run, n) {
  const at = new Float64Array(n), wide = run.window / n;
  if (run.binned) {
    for (const share of run.shares) for (let i = 0; i < share.length; i++) {
      spread(at, i % run.bins / run.bins * n, (i % run.bins + 1) / run.bins * n, share[i]);
    }
    return at;
  }
  for (let r = 0; r < run.ranks; r++) {
    let free = 0; // overlapped pairs count once
    for (let i = run.offsets[r]; i < run.offsets[r + 1]; i++) {
      spread(at, Math.max(run.start[i], free) / wide, run.end[i] / wide, 1);
      free = Math.max(free, run.end[i]);
    }
  }
  return at;
}

function drawWorking(run, canvas) {
  const width = canvas.clientWidth, height = 110, ratio = devicePixelRatio || 1;
  if (!width) return;
  canvas.style.height = height + "px";
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), look = palette(pen), n = Math.floor((width - LABEL_WIDTH) / 2), at = working(run, n);
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = look.idle;
  pen.fillRect(LABEL_WIDTH, 10, width - LABEL_WIDTH, 80);
  for (let c = 0; c < n; c++) {
    const tall = at[c] / run.ranks * 80;
    pen.fillStyle = at[c] < .999 * run.ranks ? look.B : look.F;
    pen.fillRect(LABEL_WIDTH + 2 * c, 90 - tall, 2, tall);
  }
  pen.fillStyle = look.text;
  pen.fillText(`${run.ranks} ranks`, 2, 16);
  pen.fillText("0", 48, 92);
  pen.fillText("0", LABEL_WIDTH, 104);
  pen.textAlign = "right";
  pen.fillText(duration(run.window), width, 104);
}

function atWork(data) {
  for (const run of data.runs) {
    const at = working(run, 1000), all = at.filter(n => n > .999 * run.ranks).length / 1000;
    const sentence = `${run.name}: all ${run.ranks} ranks work at once for ${percent(all)} of the time; the rest are dead zones, in which at least one idles.`;
    make("p", $("#working"), sentence, { class: "note" });
    const [canvas] = picture($("#working"), sentence);
    new ResizeObserver(() => drawWorking(run, canvas)).observe(canvas.parentElement);
  }
}

function table(parent, head, lines, wordy = []) {
  const body = make("table", make("div", parent, undefined, { class: "wide" }));
  const top = make("tr", make("thead", body));
  for (const name of head) make("th", top, name, { scope: "col" });
  const rest = make("tbody", body);
  for (const line of lines) {
    const row = make("tr", rest);
    line.forEach((cell, i) => make("td", row, cell, wordy.includes(i) ? { class: "words" } : {}));
  }
}

const ms = value => value === null || value === undefined ? "" : value.toFixed(3).replace(/\.?0+$/, "") || "0";

function tables(data) {
  if (data.causes.length) {
    table($("#causes"), ["cause", "ms", "of the window", "evidence", "what would help"],
      data.causes.map(c => [c.cause, ms(c.cost_ms), percent(c.cost_share), c.evidence, c.remedy]), [4]);
  } else $("#causes").remove();
  const fields = ["compute_ms", "warm_up_ms", "waiting_ms", "transfer_ms", "cool_down_ms"];
  for (const run of data.runs) {
    if (data.runs.length > 1) make("p", $("#ranks"), run.name, { class: "note" });
    table($("#ranks"), ["rank", ...fields.map(f => f.replace("_ms", " ms").replace("_", " ")), "peak activations"],
      run.per_rank.map(r => [r.rank, ...fields.map(f => ms(r[f])), r.peak_activations ?? ""]));
  }
}

function slider(parent, name, text, value, min, max, step = 1) {
  const label = make("label", parent, text);
  const shown = make("output", label);
  const input = make("input", label, undefined, { type: "range", name, min, max, step });
  input.value = value;
  return [name, input, shown];
}

function whatIfs(data) {
  const section = $("#whatif"), base = data.what_if;
  if (!base) { section.remove(); return; }
  const controls = make("div", section, undefined, { class: "controls" });
  const choice = make("select", make("label", controls, "schedule"), undefined, { name: "schedule" });
  for (const name of Object.keys(BUILDERS)) make("option", choice, name, { value: name });
  choice.value = base.schedule in BUILDERS ? base.schedule : "1f1b";
  const heavy = base.scale.length ? Math.max(...base.scale) : 1;
  const inputs = [
    slider(controls, "microbatches", "micro-batches per step", base.microbatches, 1, Math.max(64, 4 * base.microbatches)),
    slider(controls, "ranks", "pipeline ranks (the model cut into as many)", base.ranks, 1, Math.max(16, 2 * base.ranks)),
    slider(controls, "chunks", "chunks per rank (interleaved)", base.chunks, 1, 8),
    slider(controls, "transfer", "transfer, % of a micro-batch's forward", 100 * base.transfer / base.forward, 0, 100),
    slider(controls, "balance", "imbalance kept, %", 100, 0, 100),
  ];
  const result = make("p", section, undefined, { "aria-live": "polite", id: "answer" });
  make("p", section, base.note, { class: "note" });
  const [canvas, tip] = picture(section, "Timeline of the simulated change");
  const view = new Timeline(canvas, tip, emptyRun(), 1);
  const now = whatIf(base.schedule in BUILDERS ? base : { ...base, schedule: "1f1b" });
  const recompute = () => {
    const asked = read(base, choice, inputs, heavy), then = whatIf(asked);
    if (!then) {
      result.textContent = `${asked.schedule} takes micro-batches in groups of ${asked.ranks}: give a multiple of ${asked.ranks}.`;
      return;
    }
    const gain = now.window / base.microbatches / (then.window / asked.microbatches);
    globalThis.answer = { ...asked, window: then.window, idleShare: then.idleShare, bubbleRatio: then.bubbleRatio, peak: then.peak, gain };
    result.textContent = `${duration(then.window)} (simulated): idle share ${percent(then.idleShare)}, bubble ratio ${percent(then.bubbleRatio)}; `
      + `${gain.toFixed(2)}x the throughput per sample; ${+then.peak.toFixed(2)} micro-batches' activations in flight on the worst rank`
      + (now.peak ? `, now ${+now.peak.toFixed(2)}.` : ".");
    Object.assign(view, { run: asRun(asked, then), axis: then.window, from: 0, to: then.window, index: null, gaps: null });
    view.draw();
  };
  controls.addEventListener("input", recompute);
  recompute();
}

// The sliders' question. Another number of ranks cuts the same model anew: a rank's time changes in proportion.
function read(base, choice, inputs, heavy) {
  const asked = { ...base, schedule: choice.value };
  for (const [name, input, shown] of inputs) {
    asked[name] = +input.value;
    shown.textContent = input.value;
  }
  const cut = base.ranks / asked.ranks;
  asked.forward = base.forward * cut;
  asked.backward = base.backward * cut;
  asked.transfer = asked.transfer / 100 * base.forward;
  const mean = base.scale.length ? base.scale.reduce((a, b) => a + b, 0) / base.scale.length : 1;
  asked.scale = heavy === 1 && mean === 1 ? [] : Array.from({ length: asked.ranks }, (_, r) =>
    mean + (base.scale[Math.min(base.scale.length - 1, Math.floor(r * cut))] - mean) * asked.balance / 100);
  return asked;
}

function emptyRun() {
  return { ranks: 1, stages: 1, window: 1, kind: [], stage: [], unit: [], start: [], end: [], offsets: [0, 0] };
}

function asRun(asked, then) {
  const run = { ranks: asked.ranks, stages: 1 + Math.max(...then.order.flat().map(op => op[1])), window: then.window, offsets: [0] };
  for (const name of ["kind", "stage", "unit", "start", "end"]) run[name] = [];
  then.order.forEach((row, r) => {
    row.forEach(([kind, stage, unit], i) => {
      run.kind.push(KINDS.indexOf(kind));
      run.stage.push(stage);
      run.unit.push(unit);
      run.start.push(then.times[r][i][0]);
      run.end.push(then.times[r][i][1]);
    });
    run.offsets.push(run.kind.length);
  });
  return run;
}

function takeAway(data) {
  if (!data.take.length) { $("#take").remove(); return; }
  for (const { name, text, file } of data.take) {
    const fold = make("details", $("#take"));
    make("summary", fold, name);
    make("pre", fold, text);
    if (!file) continue;
    const button = make("button", fold, `Save ${file}`, { type: "button" });
    button.addEventListener("click", () => {
      const link = make("a", null, undefined, { href: URL.createObjectURL(new Blob([text])), download: file });
      link.click();
    });
  }
}

async function open() {
  const data = JSON.parse($("#data").textContent);
  words(data);
  await Promise.all(data.runs.map(unpack));
  timelines(data);
  atWork(data);
  tables(data);
  whatIfs(data);
  takeAway(data);
  document.body.dataset.ready = "yes";
}

open();
