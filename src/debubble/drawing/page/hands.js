// Hands on a timeline: wheel, drag and keys, as people know them from Perfetto.
"use strict";

function listen(view) {
  const { canvas } = view;
  canvas.addEventListener("wheel", event => turn(view, event), { passive: false });
  canvas.addEventListener("pointerdown", event => {
    view.grip = { x: event.offsetX, from: view.from, time: view.time(event.offsetX), measures: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
    hover(view, event);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { view.grip = null; });
  canvas.addEventListener("pointermove", event => hover(view, event));
  canvas.addEventListener("pointerleave", () => {
    view.pointer = null;
    view.tip.hidden = true;
  });
  // Keys go to the picture that has the focus, else to the one under the pointer, but never to one while a field has it.
  document.addEventListener("keydown", event => {
    const mine = event.target === canvas || (view.pointer != null && event.target === document.body);
    if (mine && !event.ctrlKey && !event.metaKey && !event.altKey && act(view, event.key)) event.preventDefault();
  });
}

// With Ctrl (or a pinch, which browsers report as that) the wheel zooms, sideways it pans; alone it scrolls the page.
function turn(view, event) {
  const { deltaX, deltaY } = event, zooms = event.ctrlKey || event.metaKey, pans = event.shiftKey || Math.abs(deltaX) > Math.abs(deltaY);
  if (!zooms && !pans) return;
  event.preventDefault();
  const span = view.to - view.from;
  if (zooms) view.zoom(deltaY > 0 ? 1.25 : .8, view.time(event.offsetX));
  else view.place(view.from + (deltaX || deltaY) / view.width * span, span);
}

function hover(view, { offsetX, offsetY }) {
  const { grip, run } = view;
  view.pointer = view.time(offsetX);
  if (grip && Math.abs(offsetX - grip.x) > 3) {
    const span = view.to - view.from;
    if (grip.measures) view.measure([grip.time, view.time(offsetX)]);
    else view.place(grip.from - (offsetX - grip.x) / view.width * span, span);
    return;
  }
  const rank = Math.floor(offsetY / view.pitch), time = view.time(offsetX);
  const there = rank < run.ranks && time >= view.from && time <= Math.min(view.to, run.window);
  if (there) view.say(explain(run, rank, time), offsetX, offsetY); else view.tip.hidden = true;
}

// What a key or button does; false where it does nothing.
function act(view, key) {
  const span = view.to - view.from, middle = view.from + span / 2;
  const around = view.pointer != null && view.pointer >= view.from && view.pointer <= view.to ? view.pointer : middle;
  const nearer = () => view.zoom(.5, around), farther = () => view.zoom(2, around);
  const left = () => view.place(view.from - span / 5, span), right = () => view.place(view.from + span / 5, span);
  const clear = () => {
    view.mark = null;
    view.measure(null);
  };
  const does = {
    "w": nearer, "+": nearer, "=": nearer, "s": farther, "-": farther, "a": left, "ArrowLeft": left, "d": right, "ArrowRight": right,
    "0": () => view.place(0, view.axis), "m": () => view.measure([view.from, view.to]), "n": () => view.step(1), "p": () => view.step(-1), "Escape": clear,
  }[key.length === 1 ? key.toLowerCase() : key];
  does?.();
  return Boolean(does);
}
