// Pointer, wheel, keys and window; and what is shown first.

function listen() {
  let drag = null;
  plot.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, begin: view.begin, end: view.end, moved: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = (drag.x - event.clientX) / scale();
      drag.moved ||= Math.abs(event.clientX - drag.x) > 3;
      if (drag.moved) { plot.classList.add("dragging"); tip(null); show(drag.begin + by, drag.end + by); }
      return;
    }
    const mark = markAt(event.offsetX, event.offsetY);
    const found = mark ? null : sliceAt(event.offsetX, event.offsetY);
    if (mark) tipOfMark(mark, event.clientX, event.clientY);
    else if (found) tipOfSlice(found, event.clientX, event.clientY);
    else tip(null);
    if (found !== hovered || mark !== pointed) { hovered = found; pointed = mark; redraw(); }
  });
  plot.addEventListener("pointerup", (event) => {
    plot.classList.remove("dragging");
    if (drag && !drag.moved) choose(stepOf.get(sliceAt(event.offsetX, event.offsetY)?.step), { move: false });
    drag = null;
  });
  plot.addEventListener("pointercancel", () => { drag = null; });
  plot.addEventListener("pointerleave", () => { hovered = pointed = null; tip(null); redraw(); });
  plot.addEventListener("dblclick", (event) => zoom(0.4, toTime(event.offsetX)));
  plot.addEventListener("wheel", (event) => {
    event.preventDefault();
    tip(null);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      pan((event.deltaX || event.deltaY) / (width - LEFT));
    } else {
      zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY)) * 0.002), toTime(Math.max(event.offsetX, LEFT)));
    }
  }, { passive: false });
  const follow = (event) => {
    const at = event.offsetX / map.clientWidth * total, half = (view.end - view.begin) / 2;
    show(at - half, at + half);
  };
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); follow(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) follow(event); });
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), fit: () => show(0, total),
    previous: () => go(-1), next: () => go(1), coarse: goCoarse,
  };
  for (const [id, act] of Object.entries(actions)) find(id).addEventListener("click", act);
  const keys = {
    w: actions.in, "+": actions.in, "=": actions.in, s: actions.out, "-": actions.out,
    0: actions.fit, n: actions.next, p: actions.previous, c: goCoarse, Escape: () => choose(null),
    ArrowLeft: () => pan(-0.15), a: () => pan(-0.15), ArrowRight: () => pan(0.15), d: () => pan(0.15),
    ArrowUp: actions.in, ArrowDown: actions.out,
    Home: () => show(0, view.end - view.begin), End: () => show(total - (view.end - view.begin), total),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (event.target === list && event.key.startsWith("Arrow")) {
      event.preventDefault();
      go(["ArrowDown", "ArrowRight"].includes(event.key) ? 1 : -1);
      return;
    }
    const act = keys[event.key] ?? keys[event.key.toLowerCase()];
    if (act) { event.preventDefault(); act(); }
  });
  list.addEventListener("scroll", fillList);
  which.addEventListener("change", filter);
  find("goto").addEventListener("change", (event) => {
    const step = stepOf.get(Number(event.target.value));
    event.target.setCustomValidity(step || !event.target.value ? "" : `steps ${steps[0]?.number} to ${steps.at(-1)?.number}`);
    event.target.reportValidity();
    if (step) choose(step);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
  new ResizeObserver(fit).observe(find("frame"));
}

function fit() {
  tip(null);
  width = plot.clientWidth;
  height = plot.clientHeight;
  for (const canvas of [plot, map]) {
    canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
    canvas.height = Math.round(canvas.clientHeight * devicePixelRatio);
  }
  lay();
  fillList();
  // At once: a new size empties a canvas, and this frame may be past its callbacks.
  draw();
}

/** All of a short run; of a long one a few steps, where a reader can see what is what. */
function begin() {
  const some = steps.filter((s) => s.begin !== null);
  const decodes = some.filter((s) => s.mode === "decode");
  const first = (decodes.length ? decodes : some)[0];
  if (some.length <= 12 || !first) { show(0, total); return; }
  const few = (decodes.length ? decodes : some).slice(0, 6);
  show(first.begin - typical(), Math.min(few.at(-1).end, first.begin + typical() * 12));
}

readColours();
tellFacts();
tellCards();
tellLegend();
tellStep();
offerArrows();
offerKinds();
find("coarse").disabled = !steps.some((s) => s.fence === "coarse" || s.fence === "failed");
filter();
listen();
fit();
begin();
