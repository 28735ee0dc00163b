// What is shown and chosen, and what lies under the pointer.

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
    reveal(step);
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

function markAt(x, y) {
  const reach = 6 / scale(), near = marksIn(toTime(x) - reach, toTime(x) + reach);
  if (x < LEFT || near.length > 12) return null;
  return near.find((m) => Math.abs(rows[m.lane].y + rows[m.lane].height - y) <= 6) ?? null;
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
