// The page: words and tables from the data, then the pictures. Text goes in as text, never as HTML.
"use strict";

const $ = selector => document.querySelector(selector);

globalThis.debubble = { views: [], answer: null }; // for scripts: the timelines, and what the sliders answer

function make(tag, parent, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

function words(data) {
  document.title = data.title;
  $("h1").textContent = data.title;
  $("#made").textContent = data.made;
  for (const sentence of data.verdict) unbroken(make("p", $("#verdict")), sentence, word => word.startsWith("--"));
  if (data.next) command(make("p", $("#verdict"), "See also: "), data.next);
  for (const { name, value, note } of data.tiles) {
    const box = make("div", $("#tiles"), undefined, { class: "tile" });
    make("span", box, name);
    make("b", box, value);
    make("span", box, note, { class: "note" });
  }
}

// A command to copy.
function command(parent, text) {
  unbroken(make("code", parent), text, () => true);
}

// Text whose lines do not break inside some of its words: a browser would also break after a hyphen of an option.
function unbroken(parent, text, whole) {
  text.split(" ").forEach((word, n) => {
    if (n) parent.append(" ");
    if (whole(word)) make("span", parent, word, { class: "unbroken" });
    else parent.append(word);
  });
}

function legend(parent, runs) {
  const box = make("div", parent, undefined, { class: "legend" });
  const there = kind => runs.some(run => run.bins ? run.shares[kind].some(share => share > 0) : run.kind.includes(kind));
  for (const kind of [F, B, I, W]) if (there(kind)) swatch(box, KINDS[kind], `${KINDS[kind]} ${KIND_WORDS[kind]}`);
  if (runs.some(run => !run.bins && run.later.some(Boolean))) swatch(box, "F2", "paler: later chunks of a rank");
  swatch(box, "idle", "idle");
}

function swatch(box, key, text) {
  const entry = make("span", box), canvas = make("canvas", entry);
  const paint = () => {
    const pen = canvas.getContext("2d"), path = new Path2D();
    [canvas.width, canvas.height] = [16, 12];
    path.rect(0, 0, 16, 12);
    fill(pen, palette(pen), key, path);
  };
  paint();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  entry.append(text);
}

function picture(parent, sentence) {
  const box = make("div", parent, undefined, { class: "picture" });
  const canvas = make("canvas", box, undefined, { role: "img", tabindex: "0", "aria-label": sentence });
  const tip = make("div", box, undefined, { class: "tip", role: "status", "aria-live": "polite" });
  tip.hidden = true;
  return [canvas, tip];
}

// Links to the sections that are there. They scroll by script: an address with # leads out of a page inside a notebook.
function contents() {
  for (const title of document.querySelectorAll("main > section > h2")) {
    const link = make("a", $("#contents"), title.textContent, { href: `#${title.parentElement.id}` });
    link.addEventListener("click", event => {
      event.preventDefault();
      title.scrollIntoView();
    });
  }
}

function timelines(data, axis) {
  const section = $("#timelines");
  legend(section, data.runs);
  const views = data.runs.map(run => {
    const many = run.bins ? `; ${run.ops.toLocaleString("en")} ops are too many for single boxes, so every row is ${run.bins} bins, each with the exact share of its time that the rank works` : "";
    make("h3", section, `${run.name}: ${duration(run.window)} (${run.evidence})`);
    make("p", section, `${run.sentence}${many}.`, { class: "note" });
    const [canvas, tip] = picture(section, `Timeline of ${run.name}: ${run.ranks} ranks over ${duration(run.window)}, ${run.sentence}. Every number is in the tables below.`);
    const told = make("p", null, "", { class: "told", role: "status", "aria-live": "polite" });
    const view = new Timeline(canvas, tip, run, axis, told);
    section.append(told);
    if (!run.bins) memory(section, view);
    buttons(section, view);
    return view;
  });
  for (const view of views) view.moved = () => { // two runs stay on one time axis, and are measured between the same times
    for (const other of views) if (other !== view) follow(other, view);
  };
  globalThis.debubble.views = views;
}

function follow(view, { from, to, range }) {
  Object.assign(view, { from, to });
  if (String(range) === String(view.range)) view.draw();
  else view.measure(range, true);
}

function memory(section, view) {
  const { rank, held } = mostHeld(view.run), most = +held.toFixed(2);
  const [canvas, tip] = picture(section, `Activations that the ranks hold over time, in micro-batches of a rank: rank ${rank} holds the most, ${most}. The most of each rank is in the tables below.`);
  new Memory(canvas, tip, view);
}

function buttons(section, view) {
  const box = make("div", section, undefined, { class: "buttons" });
  for (const [key, text, label] of [["+", "+", "zoom in"], ["-", "−", "zoom out"], ["0", "all", "show all"], ["m", "measure", "measure what is shown"], ["p", "‹ gap", "longer gap"], ["n", "gap ›", "next longest gap"]]) {
    make("button", box, text, { type: "button", "aria-label": label }).addEventListener("click", () => act(view, key));
  }
}

function atWork(data, axis) {
  for (const run of data.runs) {
    const rows = zoneRows(run), burst = rows.find(row => row.name.startsWith("burst"))?.share ?? 0;
    const dead = rows.filter(row => row.name.startsWith("dead")).reduce((sum, row) => sum + row.share, 0);
    const sentence = `${run.name}: all ${run.ranks} ranks work at once for ${percent(burst)} of the window; for ${percent(dead)} at most half of them do (dead zones).`;
    make("p", $("#working"), sentence);
    const [canvas] = picture($("#working"), sentence);
    new Working(canvas, run, axis).draw();
    // As many decimals for all: figures of one column are read against each other.
    const decimals = Math.max(...rows.map(row => ms(row.time / 1e6).split(".")[1]?.length ?? 0));
    const lines = rows.map(row => [row.name, row.count, (row.time / 1e6).toFixed(decimals), percent(row.share)]);
    table($("#working"), ["ranks at work", "times", "ms", "of the window"], lines);
  }
}

// `bar`: for each line a share of 1 that is drawn behind the last cell; `shade`: for each cell how strongly, 0 to 1.
// `left`: columns of text; `wordy`: those of them that break into lines.
function table(parent, head, lines, { wordy = [], left = [], bar, shade } = {}) {
  const kind = (cell, i) => [wordy.includes(i) && "words", left.includes(i) && "left", FIGURE.test(cell) && "figure"].filter(Boolean).join(" ");
  const classed = names => names ? { class: names } : {};
  const body = make("table", make("div", parent, undefined, { class: "wide" })), top = make("tr", make("thead", body));
  head.forEach((name, i) => make("th", top, name, { scope: "col", ...classed(kind("", i)) }));
  const rest = make("tbody", body);
  if (head.filter(Boolean).length > 4) body.className = "cards"; // on a narrow screen: a row is a list of names and values
  lines.forEach((line, k) => {
    const row = make("tr", rest);
    line.forEach((cell, i) => {
      const heat = shade?.[k]?.[i] > .05 ? { class: "heat", style: `--heat: ${Math.round(100 * Math.min(1, shade[k][i]))}%` } : {};
      // On a narrow screen a number alone at the head of a list says nothing: its column's title goes before it.
      const titled = i ? { "data-head": head[i] } : { scope: "row", ...(/^[\d.,]+$/.test(cell) ? { "data-head": `${head[0]} ` } : {}) };
      make(i ? "td" : "th", row, cell, { ...titled, ...classed(kind(cell, i)), ...heat });
    });
    if (bar) {
      const place = make("td", row, undefined, { class: "bar" }); // also of a line without a bar, so that its rule is whole
      if (bar[k] > 0) make("i", place, undefined, { style: `width: ${Math.min(1, bar[k]) * 100}%` });
    }
  });
}

const FIGURE = /^[-+~±]?[\d.,]+( ?(%|x|ns|us|ms|s|min|h|GB))?$/; // with its unit, from which no line may part it

const ms = value => value === null || value === undefined ? "" : value.toFixed(3).replace(/\.?0+$/, "") || "0";

function causes(data) {
  for (const { name, rows, whole = "window", hint, total, note = "" } of data.causes) {
    if (hint) $("#causes .hint").textContent = hint;
    if (name) make("h3", $("#causes"), name);
    const sum = key => rows.reduce((total, row) => total + row[key], 0);
    const lines = rows.map(row => [row.cause, ...(row.cells ?? [ms(row.cost_ms), percent(row.cost_share)]), row.evidence, row.remedy]);
    const all = total ?? [ms(sum("cost_ms")), percent(sum("cost_share"))];
    table($("#causes"), ["cause", "ms", `of the ${whole}`, "evidence", "what it is, what would help", ""], [...lines, [whole, ...all, "", note]],
      { wordy: [4], left: [3], bar: [...rows.map(row => row.cost_share), 0] });
  }
  if (!data.causes.length) $("#causes").remove();
}

// What a verb has beside the rest: layouts of a plan, replicas of a run, remarks.
function further(data) {
  for (const { title, hint, tables, sentences = [] } of data.sections) {
    const section = make("section", null, undefined, { "aria-label": title });
    $("#whatif").before(section);
    if (title) make("h2", section, title);
    if (hint) make("p", section, hint, { class: "hint" });
    for (const { name, head, lines, notes = [], ...more } of tables) {
      if (name) make("h3", section, name);
      table(section, head, lines, more);
      for (const note of notes) make("p", section, note, { class: "note" });
    }
    const list = sentences.length ? make("ul", section) : null;
    for (const sentence of sentences) make("li", list, sentence);
  }
}

function ranks(data) {
  const fields = ["compute_ms", "warm_up_ms", "waiting_ms", "transfer_ms", "cool_down_ms"];
  for (const run of data.runs) {
    const fold = make("details", $("#ranks"));
    fold.open = run.per_rank.length <= 16;
    make("summary", fold, `${run.name}: ${run.per_rank.length} ranks; each line sums to the window`);
    if (run.table) {
      table(fold, run.table.head, run.table.lines);
      if (run.table.note) make("p", fold, run.table.note, { class: "note" });
    } else table(fold, ["rank", ...fields.map(field => field.replace("_ms", " ms").replace("_", "-")), "busy", "peak activations"],
      run.per_rank.map(row => [row.rank, ...fields.map(field => ms(row[field])), percent(row.compute_ms * 1e6 / run.window), row.peak_activations ?? ""]));
  }
}

// What is made from the ops here in the page, when it is asked for.
const MAKERS = {
  "perfetto": run => perfettoTrace(run, run.name),
  "torch-csv": run => torchCsv(run),
  "ops-csv": run => opsCsv(run),
};

function takeAway(data) {
  for (const { name, text, file, maker, run } of data.take) {
    const fold = make("details", $("#take"));
    make("summary", fold, name);
    const content = () => maker ? MAKERS[maker](data.runs[run]) : text;
    let shown = false;
    fold.addEventListener("toggle", () => {
      if (shown) return;
      shown = true;
      const all = content();
      make("pre", fold, all.length > 20000 ? `${all.slice(0, 20000)}\n.. and ${all.length - 20000} characters more` : all);
    });
    if (!file) continue;
    make("button", fold, `Save ${file}`, { type: "button" }).addEventListener("click", () => save(content(), file));
  }
  if (!data.take.length) $("#take").remove();
}

function save(text, file) {
  const address = URL.createObjectURL(new Blob([text]));
  make("a", null, undefined, { href: address, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

async function open() {
  const data = JSON.parse($("#data").textContent);
  words(data);
  causes(data);
  ranks(data);
  further(data);
  await Promise.all(data.runs.map(unpack));
  const axis = Math.max(1, ...data.runs.map(run => run.window));
  if (data.runs.length) {
    timelines(data, axis);
    atWork(data, axis);
  } else for (const part of ["#timelines", "#working", "#ranks"]) $(part).remove();
  if (data.what_if) new WhatIf($("#whatif"), await baseOf(data.what_if, data.runs[data.what_if.run]));
  else $("#whatif").remove();
  takeAway(data);
  contents();
  document.body.dataset.ready = "yes";
}

open();
