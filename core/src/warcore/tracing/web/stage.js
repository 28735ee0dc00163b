// Where things are, and what colour they have.

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
let width = 0, height = 0, hovered = null, pointed = null, selected = null, asked = false;
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

const marksIn = (begin, end) => marks.slice(firstFrom(marks, begin, "at"), firstFrom(marks, end, "at"));

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
