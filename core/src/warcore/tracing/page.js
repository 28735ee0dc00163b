"use strict";
// Draws the timeline in #data. Texts from the data reach the page as text only, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const word = (place) => data.words[place];
const slices = data.slices.map(([lane, kind, name, begin, length, step, inside, failed]) => ({
  lane, kind: word(kind), name: word(name), begin, end: begin + length, step, inside, failed,
}));
const marks = data.marks.map(([lane, kind, event, generation, at, step]) => ({
  lane, kind: word(kind), event: word(event), generation, at, step,
}));
const arrows = data.arrows.map(([kind, event, generation, source, begin, target, end, step]) => ({
  kind: word(kind), event: word(event), generation, source, begin, target, end, step,
})).sort((a, b) => a.begin - b.begin);
const steps = data.steps.map(([number, mode, runsAs, fence, reason, detail, next, error, tokens,
  begin, end, fenceAt, waited, requests]) => ({
  number, mode: word(mode), runsAs: word(runsAs), fence: word(fence), reason: word(reason),
  detail: word(detail), next: word(next), error: word(error), tokens, begin, end, fenceAt, waited,
  requests,
}));
const stepOf = new Map(steps.map((step) => [step.number, step]));
const total = Math.max(data.end, 1);

// ---- words ---------------------------------------------------------------------------------------

const find = (id) => document.getElementById(id);

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = kind;
  return made;
}

function time(ns, digits = 3) {
  const [unit, size] = ns < 1e3 ? ["ns", 1] : ns < 1e6 ? ["µs", 1e3] : ns < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  return `${Number((ns / size).toPrecision(digits))} ${unit}`;
}

const percent = (share) => `${(100 * share).toFixed(share > 0.0995 || share === 0 ? 0 : 1)} %`;
const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

const MEANINGS = {
  prepare: "the host chooses the next batch",
  launch: "the host submits the step",
  barrier: "the host orders later writes behind the fence",
  collect: "the host takes the results",
  copy: "host values cross to the device",
  write: "the shared tables are rewritten",
  wait: "the schedule stream waits until the step's shared reads have ended",
  forward: "the step runs",
  phase: "a phase of the step",
  work: "other work of this stream",
};

// ---- colours: of the style sheet, so that light and dark are one place ---------------------------

let colour = {};
let hatch = null, face = "sans-serif";

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colour = new Proxy({}, {
    get: (known, name) => known[name] ??= style.getPropertyValue(`--${name}`).trim(),
  });
  face = getComputedStyle(document.body).fontFamily;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colour.hatch;
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const x of [-8, 0, 8]) { pen.moveTo(x, 8); pen.lineTo(x + 8, 0); }
  pen.stroke();
  hatch = pen.createPattern(tile, "repeat");
}

function fillOf(slice) {
  if (slice.kind === "wait") return hatch;
  if (slice.failed && slice.kind !== "forward") return colour.failed;
  if (slice.kind === "phase") return phaseColour(slice.name);
  return colour[{ work: "other" }[slice.kind] ?? slice.kind] || colour.other;
}

const phases = [];
function phaseColour(name) {
  if (!phases.includes(name)) phases.push(name);
  return phases.indexOf(name) % 2 ? colour["phase-alt"] : colour.phase;
}

// ---- where things are ----------------------------------------------------------------------------

const LEFT = 118, AXIS = 30;
const plot = find("plot"), map = find("map");
const pen = plot.getContext("2d"), mapPen = map.getContext("2d");
const rows = data.lanes.map((name, lane) => ({
  name: lane === 0 ? "host" : `${name} stream`,
  whole: slices.filter((s) => s.lane === lane && !s.inside),
  // What a call spent waiting is drawn over it; phases have a row of their own.
  over: slices.filter((s) => s.lane === lane && s.inside && s.kind === "wait"),
  parts: slices.filter((s) => s.lane === lane && s.inside && s.kind !== "wait"),
}));
const view = { begin: 0, end: total };
let width = 0, height = 0, hovered = null, selected = null, asked = false;
const shown = { fence: true, inputs: false, results: false, event: false };

function lay() {
  const weight = rows.reduce((sum, row) => sum + (row.parts.length ? 2.7 : 2), 0);
  const unit = Math.min(Math.max((height - AXIS - 16) / weight, 24), 74);
  let y = AXIS + 14;
  for (const row of rows) {
    row.y = y;
    row.height = Math.round(Math.min(unit * 0.92, 52));
    row.partY = y + row.height + 2;
    row.partHeight = row.parts.length ? Math.round(row.height * 0.66) : 0;
    y += Math.round(unit * (row.parts.length ? 2.7 : 2));
  }
}

const scale = () => (width - LEFT) / (view.end - view.begin);
const toX = (t) => LEFT + (t - view.begin) * scale();
const toTime = (x) => view.begin + (x - LEFT) / scale();

/** The index of the first of `list`, which is ordered, whose `key` is not below `value`. */
function firstFrom(list, value, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle][key] < value) low = middle + 1; else high = middle;
  }
  return low;
}

const visible = (list) => list.slice(firstFrom(list, view.begin, "end"), firstFrom(list, view.end, "begin"));

// ---- drawing -------------------------------------------------------------------------------------

function draw() {
  asked = false;
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, width, height);
  drawAxis();
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width - LEFT, height);
  pen.clip();
  for (const row of rows) drawRow(row);
  drawArrows();
  pen.restore();
  drawNames();
  drawMap();
  find("span").textContent = `${time(view.end - view.begin)} of ${time(total)}`;
}

function redraw() {
  if (!asked) { asked = true; requestAnimationFrame(draw); }
}

function drawAxis() {
  const wish = (view.end - view.begin) / ((width - LEFT) / 110);
  const power = 10 ** Math.floor(Math.log10(wish));
  const gap = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wish));
  const [unit, size] = gap < 1e3 && view.end < 1e5 ? ["ns", 1] : gap < 1e6 ? ["µs", 1e3] : gap < 1e9 ? ["ms", 1e6] : ["s", 1e9];
  pen.font = `11.5px ${face}`;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  for (let t = Math.ceil(view.begin / gap) * gap; t <= view.end; t += gap) {
    const x = Math.round(toX(t)) + 0.5;
    pen.strokeStyle = colour.grid;
    pen.beginPath(); pen.moveTo(x, 6); pen.lineTo(x, height); pen.stroke();
    pen.fillStyle = colour.soft;
    pen.fillText(`${(t / size).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`, x + 5, 15);
  }
}

function drawRow(row) {
  pen.strokeStyle = colour.line;
  pen.beginPath();
  pen.moveTo(LEFT, row.y + row.height + 0.5);
  pen.lineTo(width, row.y + row.height + 0.5);
  pen.stroke();
  const forward = row.whole.some((s) => s.kind === "forward");
  if (forward) drawIdle(row);
  drawSlices(visible(row.whole), row.y, row.height);
  drawSlices(visible(row.over), row.y, row.height);
  drawSlices(visible(row.parts), row.partY, row.partHeight);
}

function drawSlices(list, y, h) {
  let column = -1, rank = -1;
  for (const slice of list) {
    const x = Math.max(toX(slice.begin), LEFT - 4), right = Math.min(toX(slice.end), width + 4);
    const w = right - x;
    if (w < 1) {
      // Many slices in one column of pixels: the one that matters most is seen.
      const here = Math.floor(x), matters = rankOf(slice);
      if (here === column && matters <= rank) continue;
      column = here; rank = matters;
    }
    drawSlice(slice, x, Math.max(w, 1), y, h);
  }
}

const RANKS = { unfenced: 1, fine: 2, coarse: 3, failed: 4 };
const rankOf = (slice) => slice.kind === "forward" ? RANKS[stepOf.get(slice.step)?.fence] ?? 0 : 0;

function drawSlice(slice, x, w, y, h) {
  const inset = w > 4 ? 0.5 : 0, radius = w > 6 ? 3 : 0;
  const path = () => { pen.beginPath(); pen.roundRect(x + inset, y, w - 2 * inset, h, radius); };
  const step = stepOf.get(slice.step);
  path();
  if (slice.kind === "forward" && step) {
    fillForward(slice, step, x, w, y, h);
  } else {
    if (slice.kind === "wait") { pen.fillStyle = colour.panel; pen.fill(); }
    pen.fillStyle = fillOf(slice);
    pen.fill();
  }
  if (slice === hovered || (selected && slice.step === selected.number && !slice.inside)) {
    pen.strokeStyle = slice === hovered ? colour.ink : colour.accent;
    pen.lineWidth = 1.5;
    path(); pen.stroke();
    pen.lineWidth = 1;
  }
  label(slice, x, w, y, h);
}

/** Full colour while the shared tables are read, pale once they may be rewritten. */
function fillForward(slice, step, x, w, y, h) {
  pen.fillStyle = colour[`${step.fence}-soft`];
  pen.fill();
  const until = step.fenceAt ?? (step.fence === "unfenced" ? slice.begin : slice.end);
  const right = Math.min(Math.max(toX(until), x), x + w);
  if (right <= x) return;
  pen.save();
  pen.clip();
  pen.fillStyle = colour[step.fence];
  pen.fillRect(x, y, Math.max(right - x, Math.min(2, w)), h);
  pen.restore();
}

function label(slice, x, w, y, h) {
  let from = Math.max(x, LEFT);
  const until = slice.kind === "forward" ? stepOf.get(slice.step)?.fenceAt : null;
  // Beside the dark part where that is narrow, or else on it.
  if (until && toX(until) > from && toX(until) - x < w * 0.4) from = toX(until);
  const room = Math.min(x + w, width) - from - 10;
  if (room < 22 || h < 13) return;
  pen.font = `${slice.inside ? 11 : 12}px ${face}`;
  let text = slice.name;
  const needs = pen.measureText(text).width;
  if (needs > room) {
    const keep = Math.floor(text.length * room / needs) - 2;
    if (keep < 3) return;
    text = `${text.slice(0, keep)}…`;
  }
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const middle = y + h / 2 + 0.5;
  if (slice.kind === "wait") {
    pen.fillStyle = colour.panel;
    pen.fillRect(from + 3, y + h / 2 - 8, Math.min(needs, room) + 5, 16);
  }
  const dark = ["prepare", "collect", "write", "launch"].includes(slice.kind) || slice.failed;
  pen.fillStyle = dark ? "#ffffff" : colour.ink;
  pen.fillText(text, from + 6, middle);
  if (slice.kind !== "forward" || !until) return;
  // The text again, in the ink of the full colour, as far as that reaches.
  pen.save();
  pen.beginPath();
  pen.rect(x, y, toX(until) - x, h);
  pen.clip();
  pen.fillStyle = colour[stepOf.get(slice.step).fence];
  pen.fillRect(from + 4, y + 2, needs + 4, h - 4);
  pen.fillStyle = colour["on-full"];
  pen.fillText(text, from + 6, middle);
  pen.restore();
}

function drawIdle(row) {
  const list = row.whole.filter((s) => s.kind === "forward");
  const first = Math.max(firstFrom(list, view.begin, "end") - 1, 0);
  pen.strokeStyle = colour.idle;
  pen.setLineDash([3, 3]);
  for (let i = first; i + 1 < list.length && list[i].end < view.end; i++) {
    const x = toX(list[i].end), right = toX(list[i + 1].begin);
    if (right - x < 4) continue;
    pen.strokeRect(x + 1.5, row.y + 3.5, right - x - 3, row.height - 7);
    if (right - x > 34) {
      pen.font = `11px ${face}`;
      pen.fillStyle = colour.idle;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.fillText("idle", (x + right) / 2, row.y + row.height / 2);
    }
  }
  pen.setLineDash([]);
}

function drawArrows() {
  const busy = focused();
  const near = visible(arrows).filter((a) => shown[a.kind]);
  // A thicket tells nothing: from far away only the arrows of one step are drawn.
  const sparse = near.length <= (width - LEFT) / 7;
  for (const arrow of near) {
    const strong = busy !== null && arrow.step === busy;
    if (sparse || strong) drawArrow(arrow, strong);
  }
}

const focused = () => hovered?.step ?? selected?.number ?? null;

function arrowColour(arrow) {
  if (arrow.kind !== "fence") return { inputs: colour.write, results: colour.prepare }[arrow.kind] ?? colour.other;
  return colour[`${stepOf.get(arrow.step)?.fence ?? "unfenced"}-ink`];
}

function drawArrow(arrow, strong) {
  const from = rows[arrow.source], to = rows[arrow.target];
  const x = toX(arrow.begin), end = toX(arrow.end);
  const up = to.y < from.y;
  const y = up ? from.y : from.y + from.height;
  const stop = up ? to.y + to.height + 1 : to.y - 1;
  const bend = Math.max(Math.abs(stop - y) * 0.5, 10) * (up ? -1 : 1);
  pen.strokeStyle = pen.fillStyle = arrowColour(arrow);
  pen.globalAlpha = strong ? 1 : arrow.kind === "fence" ? 0.9 : 0.6;
  pen.lineWidth = strong ? 2.2 : 1.3;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.bezierCurveTo(x, y + bend, end, stop - bend, end, stop + (up ? 6 : -6));
  pen.stroke();
  pen.beginPath();
  pen.arc(x, y, 3, 0, 7);
  pen.fill();
  const tail = up ? 7 : -7;
  pen.beginPath();
  pen.moveTo(end, stop); pen.lineTo(end - 4, stop + tail); pen.lineTo(end + 4, stop + tail);
  pen.closePath();
  pen.fill();
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
}

function drawNames() {
  pen.fillStyle = colour.paper;
  pen.fillRect(0, 0, LEFT - 1, height);
  pen.strokeStyle = colour.line;
  pen.beginPath(); pen.moveTo(LEFT - 0.5, 0); pen.lineTo(LEFT - 0.5, height); pen.stroke();
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const row of rows) {
    pen.fillStyle = colour.ink;
    pen.font = `600 12.5px ${face}`;
    pen.fillText(row.name, LEFT - 12, row.y + row.height / 2, LEFT - 16);
    if (row.parts.length) {
      pen.fillStyle = colour.soft;
      pen.font = `11.5px ${face}`;
      pen.fillText("phases", LEFT - 12, row.partY + row.partHeight / 2);
    }
  }
}

function drawMap() {
  const w = map.clientWidth, h = map.clientHeight;
  mapPen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  mapPen.clearRect(0, 0, w, h);
  for (const worst of [false, true]) {
    for (const step of steps) {
      const bad = step.fence === "coarse" || step.fence === "failed";
      if (step.begin === null || bad !== worst) continue;
      mapPen.fillStyle = colour[step.fence];
      const x = step.begin / total * w;
      const gap = steps.length < w / 6 ? 1 : 0;
      mapPen.fillRect(x, 6, Math.max((step.end - step.begin) / total * w - gap, worst ? 1.5 : 0.7), h - 12);
    }
  }
  const x = view.begin / total * w, right = Math.max(view.end / total * w, x + 8);
  mapPen.fillStyle = colour.paper;
  mapPen.globalAlpha = 0.5;
  mapPen.fillRect(0, 0, x, h);
  mapPen.fillRect(right, 0, w - right, h);
  mapPen.globalAlpha = 1;
  mapPen.strokeStyle = colour.accent;
  mapPen.lineWidth = 2;
  mapPen.strokeRect(x + 1, 1, right - x - 2, h - 2);
}

// ---- moving --------------------------------------------------------------------------------------

const SMALLEST = 200;

function show(begin, end) {
  const length = Math.min(Math.max(end - begin, SMALLEST), total * 1.02);
  const middle = (begin + end) / 2, slack = total * 0.01;
  view.begin = Math.min(Math.max(middle - length / 2, -slack), total + slack - length);
  view.end = view.begin + length;
  redraw();
}

function zoom(factor, at = (view.begin + view.end) / 2) {
  const length = Math.min(Math.max((view.end - view.begin) * factor, SMALLEST), total * 1.02);
  const part = (at - view.begin) / (view.end - view.begin);
  show(at - part * length, at + (1 - part) * length);
}

function pan(part) {
  const by = part * (view.end - view.begin);
  show(view.begin + by, view.end + by);
}

function choose(step, { move = true } = {}) {
  selected = step ?? null;
  tellStep();
  fillList();
  if (step && step.begin !== null && move) {
    const reach = Math.max((step.end - step.begin) * 1.6, Math.min(view.end - view.begin, typical() * 12));
    const middle = (step.begin + step.end) / 2;
    show(middle - reach / 2, middle + reach / 2);
    scrollTo(step);
  }
  redraw();
}

function typical() {
  const lengths = steps.filter((s) => s.begin !== null).map((s) => s.end - s.begin).sort((a, b) => a - b);
  return lengths[lengths.length >> 1] ?? total;
}

function go(by) {
  const middle = (view.begin + view.end) / 2;
  let at = selected ? steps.indexOf(selected) + by : steps.findIndex((s) => (s.end ?? 0) >= middle);
  if (at < 0) at = selected ? 0 : steps.length - 1;
  choose(steps[Math.min(at, steps.length - 1)]);
}

function goCoarse() {
  const from = selected ? steps.indexOf(selected) + 1 : 0;
  const turned = [...steps.slice(from), ...steps.slice(0, from)];
  const found = turned.find((s) => s.fence === "coarse" || s.fence === "failed");
  if (found) choose(found);
}

function sliceAt(x, y) {
  if (x < LEFT) return null;
  const t = toTime(x), reach = 3 / scale();
  for (const row of rows) {
    const within = (top, h) => y >= top && y <= top + h;
    if (within(row.partY, row.partHeight)) return nearest(row.parts, t, reach);
    if (within(row.y, row.height)) return nearest(row.over, t, 0) ?? nearest(row.whole, t, reach);
  }
  return null;
}

function nearest(list, t, reach) {
  const place = firstFrom(list, t, "end");
  const near = [list[place], list[place - 1]].filter((s) => s && s.begin - reach <= t && t <= s.end + reach);
  return near.find((s) => s.begin <= t && t <= s.end) ?? near[0] ?? null;
}

// ---- what is told --------------------------------------------------------------------------------

function tip(slice, x, y) {
  const box = find("tip");
  box.hidden = slice === null;
  if (slice === null) return;
  const step = stepOf.get(slice.step);
  box.replaceChildren(element("strong", slice.name));
  const line = (text, kind = "") => box.append(element("div", text, kind));
  line(`${time(slice.end - slice.begin)}, from ${time(slice.begin, 6)}`);
  const meaning = slice.lane === 0 && slice.kind === "wait" ? "the host waits for the step's results" : MEANINGS[slice.kind];
  line(`${meaning ?? slice.kind}; step ${slice.step}`);
  if (step && ["forward", "wait", "launch"].includes(slice.kind) && slice.lane !== 0 || slice.kind === "launch") {
    line(sentence(step), "next");
    if (step.detail) line(step.detail);
    if (step.error) line(step.error);
    if (step.next) line(`To make it fine: ${step.next}`);
  }
  const { width: w, height: h } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - w - 8))}px`;
  box.style.top = `${y + 20 + h > innerHeight ? Math.max(4, y - h - 12) : y + 20}px`;
}

function sentence(step) {
  if (step.fence === "fine") return "Fine fence: the next write waits for this step's shared reads only";
  if (step.fence === "unfenced") return "No fence: nothing was prepared while this step ran";
  const why = `${step.reason}`;
  return step.fence === "failed" ? `The step failed, so its fence is coarse (${why})` : `Coarse fence (${why}): the next write waits for the whole forward`;
}

function tellStep() {
  const box = find("detail");
  if (!selected) { tellRun(box); return; }
  const step = selected;
  const head = element("h2", `Step ${step.number}`);
  head.append(element("span", step.fence, `chip ${step.fence}`));
  const facts = document.createElement("dl");
  const fact = (name, value) => {
    if (value === "" || value === null) return;
    facts.append(element("dt", name), value instanceof Node ? value : element("dd", value));
  };
  fact("Mode", step.runsAs ? `${step.mode}, ${step.runsAs}` : step.mode);
  fact("Size", `${plural(step.requests.length, "request")}, ${plural(step.tokens, "token")}`);
  if (step.begin !== null) fact("Forward", time(step.end - step.begin, 4));
  if (step.fenceAt !== null && step.begin !== null) fact("Fence after", `${time(step.fenceAt - step.begin, 4)} (${percent((step.fenceAt - step.begin) / Math.max(step.end - step.begin, 1))} of it)`);
  if (step.waited) fact("Write waited", time(step.waited, 4));
  fact("Reason", ["coarse", "failed"].includes(step.fence) ? step.reason : "");
  fact("Detail", step.detail);
  fact("Error", step.error);
  if (step.next) {
    const next = document.createElement("dd");
    next.append(element("code", step.next));
    fact("To make it fine", next);
  }
  box.replaceChildren(head, element("p", sentence(step)), facts);
}

function tellRun(box) {
  const { fenced_steps: fenced, fine_steps: fine, coarse } = data.summary;
  const head = element("h2", "Where the fences fell");
  const said = !fenced
    ? "No step was fenced: none ran while another was prepared."
    : coarse.length
      ? `${fine.toLocaleString("en")} of ${plural(fenced, "step")} had a fine fence. The others held up the next write for a whole forward:`
      : `All ${plural(fenced, "step")} had a fine fence: each next write waited for shared reads only.`;
  box.replaceChildren(head, element("p", said));
  for (const pair of coarse.slice(0, 20)) {
    const part = element("div", "", "pair");
    part.append(element("strong", `${pair.count} × ${pair.mode}: ${pair.reason}`));
    if (pair.detail) part.append(element("div", pair.detail));
    if (pair.next) {
      const next = element("div", "To make it fine: ");
      next.append(element("code", pair.next));
      part.append(next);
    }
    box.append(part);
  }
  box.append(element("p", "Choose a step in the list or in the timeline to see its fence."));
}

function tellFacts() {
  const { engine, summary, warcore } = data;
  const kept = summary.dropped_steps
    ? `the last ${plural(summary.steps, "step")} of ${(summary.steps + summary.dropped_steps).toLocaleString("en")}`
    : plural(summary.steps, "step");
  const device = engine.host ? `${engine.device} (${engine.host})` : engine.device;
  find("facts").textContent = [
    engine.model, `backend ${engine.backend}`, engine.dtype, device, `${engine.loop} loop`, kept,
    time(total), `warcore ${warcore}`,
  ].filter(Boolean).join(" · ");
  document.title = `warcore trace: ${engine.model}`;
}

function tellCards() {
  const { summary } = data;
  const card = (name, value, shares = [], small = "") => {
    const box = document.createElement("div"), number = element("dd", value);
    if (small) number.append(element("small", ` ${small}`));
    box.append(element("dt", name), number);
    if (shares.length) {
      const bar = element("div", "", "share");
      for (const [share, tint] of shares) {
        const part = document.createElement("i");
        part.style.width = `${100 * share}%`;
        part.style.background = `var(--${tint})`;
        bar.append(part);
      }
      box.append(bar);
    }
    find("cards").append(box);
  };
  const { forward_busy: busy, host_waited: waited, fenced_steps: fenced, fine_steps: fine } = summary;
  if (fenced) card("Fine fences", `${fine.toLocaleString("en")}`, [[fine / fenced, "fine"], [1 - fine / fenced, "coarse"]], `of ${fenced.toLocaleString("en")}`);
  else card("Fine fences", "none", [], "no fences");
  card("Forward stream busy", percent(busy), [[busy, "accent"]]);
  card("Host waits for results", percent(waited), [[waited, "prepare"]]);
  if (summary.step_seconds) card("A decode every", time(summary.step_seconds * 1e9));
  if (summary.schedule_waited) card("Writes waited", time(summary.schedule_waited * 1e9), [], "in all");
}

function tellLegend() {
  const half = (name) => `linear-gradient(90deg, var(--${name}) 45%, var(--${name}-soft) 45%)`;
  const stripes = "repeating-linear-gradient(135deg, var(--hatch) 0 1.5px, var(--panel) 1.5px 5px)";
  const kinds = new Set(slices.map((s) => s.kind)), fences = new Set(steps.map((s) => s.fence));
  const items = [
    [fences.has("fine"), half("fine"), "fine fence: reads, then free to rewrite"],
    [fences.has("coarse"), "var(--coarse)", "coarse fence: held to the end"],
    [fences.has("failed"), "var(--failed)", "failed step"],
    [fences.has("unfenced"), "var(--unfenced-soft)", "no fence"],
    [kinds.has("write"), "var(--write)", "writes the shared tables"],
    [kinds.has("copy"), "var(--copy)", "copies inputs"],
    [kinds.has("wait"), stripes, "waits"],
    [kinds.has("phase"), "linear-gradient(90deg, var(--phase) 50%, var(--phase-alt) 50%)", "phases"],
    [kinds.has("prepare"), "linear-gradient(90deg, var(--prepare) 40%, var(--launch) 40% 75%, var(--collect) 75%)", "host work"],
    [kinds.has("work"), "var(--other)", "other work"],
  ];
  for (const [there, background, text] of items) {
    if (!there) continue;
    const item = document.createElement("li"), swatch = document.createElement("i");
    swatch.style.background = background;
    item.append(swatch, text);
    find("legend").append(item);
  }
}

function offerArrows() {
  const names = { fence: "record → write", inputs: "inputs → forward", results: "results → host", event: "other events" };
  const there = new Set(arrows.map((a) => a.kind));
  for (const [kind, text] of Object.entries(names)) {
    if (!there.has(kind)) continue;
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = shown[kind];
    box.addEventListener("change", () => { shown[kind] = box.checked; redraw(); });
    const row = document.createElement("label");
    row.append(box, text);
    find("arrows").append(row);
  }
}

// ---- the list of steps: only what is seen is there -----------------------------------------------

const ROW = 28;
const list = find("list"), filler = find("filler"), which = find("which");
let listed = steps;

function offerKinds() {
  const kinds = new Set();
  for (const step of steps) { kinds.add(step.mode); kinds.add(step.fence); }
  for (const kind of kinds) which.append(new Option(kind, kind));
}

function filter() {
  const kind = which.value;
  listed = kind ? steps.filter((s) => s.mode === kind || s.fence === kind) : steps;
  filler.style.height = `${listed.length * ROW}px`;
  list.scrollTop = 0;
  fillList();
}

function fillList() {
  for (const row of list.querySelectorAll(".row")) row.remove();
  const first = Math.floor(list.scrollTop / ROW), last = first + Math.ceil(list.clientHeight / ROW) + 1;
  for (let i = first; i < Math.min(last, listed.length); i++) {
    const step = listed[i], row = element("div", "", "row");
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(step === selected));
    row.style.top = `${i * ROW}px`;
    const fence = element("span");
    fence.append(element("span", step.fence, `chip ${step.fence}`));
    row.append(
      element("span", String(step.number), "number"),
      element("span", step.runsAs ? `${step.mode}, ${step.runsAs}` : step.mode, "mode"),
      fence,
      element("span", step.begin === null ? "" : time(step.end - step.begin)),
    );
    row.addEventListener("click", () => choose(step));
    list.append(row);
  }
}

function scrollTo(step) {
  const at = listed.indexOf(step) * ROW;
  if (at < 0) return;
  if (at < list.scrollTop) list.scrollTop = at;
  else if (at + ROW > list.scrollTop + list.clientHeight) list.scrollTop = at + ROW - list.clientHeight;
}

// ---- hands ---------------------------------------------------------------------------------------

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
    const found = sliceAt(event.offsetX, event.offsetY);
    tip(found, event.clientX, event.clientY);
    if (found !== hovered) { hovered = found; redraw(); }
  });
  plot.addEventListener("pointerup", (event) => {
    plot.classList.remove("dragging");
    if (drag && !drag.moved) choose(stepOf.get(sliceAt(event.offsetX, event.offsetY)?.step), { move: false });
    drag = null;
  });
  plot.addEventListener("pointercancel", () => { drag = null; });
  plot.addEventListener("pointerleave", () => { hovered = null; tip(null); redraw(); });
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
  redraw();
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
