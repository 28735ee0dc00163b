// What is seen: the plot, and the map of the whole run above it.

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
  drawMarks();
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
  pen.textBaseline = "middle";
  for (let t = Math.ceil(view.begin / gap) * gap; t <= view.end; t += gap) {
    const x = Math.round(toX(t)) + 0.5;
    pen.strokeStyle = colour.grid;
    pen.beginPath(); pen.moveTo(x, 6); pen.lineTo(x, height); pen.stroke();
    pen.fillStyle = colour.soft;
    const text = `${(t / size).toLocaleString("en", { maximumFractionDigits: 3 })} ${unit}`;
    // At the right edge on the other side of its line.
    const right = x + 5 + pen.measureText(text).width <= width;
    pen.textAlign = right ? "left" : "right";
    pen.fillText(text, right ? x + 5 : x - 5, 15);
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
  const near = arrows.filter((a) => shown[a.kind] && a.end >= view.begin && a.begin <= view.end);
  // Too many tell nothing: from far away only the arrows of one step are drawn.
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

/** Records as full and waits as open diamonds, on the line of their lane, where there is room. */
function drawMarks() {
  const near = marksIn(view.begin, view.end);
  if (near.length > (width - LEFT) / 12) return;
  for (const mark of near) {
    const x = toX(mark.at), y = rows[mark.lane].y + rows[mark.lane].height, size = mark === pointed ? 6 : 4;
    pen.beginPath();
    pen.moveTo(x, y - size); pen.lineTo(x + size, y); pen.lineTo(x, y + size); pen.lineTo(x - size, y);
    pen.closePath();
    pen.fillStyle = mark.kind === "record" ? colour.ink : colour.paper;
    pen.fill();
    pen.strokeStyle = colour.ink;
    pen.stroke();
  }
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
