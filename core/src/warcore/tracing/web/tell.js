// What is told beside the plot: facts, the chosen step, the list of steps.

/** A small box at the pointer: a title, and lines of text with their class. No title: no box. */
function tip(title, lines = [], x = 0, y = 0) {
  const box = find("tip");
  box.hidden = title === null;
  if (title === null) return;
  box.replaceChildren(element("strong", title), ...lines.map(([text, kind]) => element("div", text, kind)));
  const { width: w, height: h } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 16, innerWidth - w - 8))}px`;
  box.style.top = `${y + 20 + h > innerHeight ? Math.max(4, y - h - 12) : y + 20}px`;
}

function tipOfSlice(slice, x, y) {
  const step = stepOf.get(slice.step);
  const waits = slice.lane === 0 && slice.kind === "wait";
  const meaning = waits ? "the host waits for the step's results" : MEANINGS[slice.kind] ?? slice.kind;
  const lines = [
    [`${time(slice.end - slice.begin)}, from ${time(slice.begin, 6)}`],
    [`Step ${slice.step}: ${meaning}`],
  ];
  if (step && !waits && ["forward", "wait", "launch"].includes(slice.kind)) {
    lines.push([sentence(step), "next"]);
    for (const text of [step.detail, step.error]) if (text) lines.push([text]);
    if (step.next) lines.push([`To make it fine: ${step.next}`]);
  }
  tip(slice.name, lines, x, y);
}

function tipOfMark(mark, x, y) {
  const does = mark.kind === "record" ? "The stream passes the record" : "The wait for this record ends";
  const where = rows[mark.lane].name;
  tip(`${mark.event}, record ${mark.generation}`, [
    [`${does} on the ${where}, at ${time(mark.at, 6)}`],
    [`Step ${mark.step}`],
  ], x, y);
}

function sentence(step) {
  if (step.fence === "fine") return "Fine fence: the next write waits only until this step has read the shared tables";
  if (step.fence === "unfenced") return "No fence: the next step was not prepared before this one had ended";
  const why = `${step.reason}`;
  return step.fence === "failed" ? `The step failed, so the next write waits for the whole forward (${why})` : `Coarse fence (${why}): the next write waits for the whole forward`;
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
  if (step.fenceAt !== null && step.begin !== null) fact("Fence passed after", `${time(step.fenceAt - step.begin, 4)} (${percent((step.fenceAt - step.begin) / Math.max(step.end - step.begin, 1))} of the forward)`);
  if (step.waited) fact("Next write waited", time(step.waited, 4));
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
  const head = element("h2", "Fences of this run");
  const said = !fenced
    ? "No step had a fence: each step was prepared after the one before had ended."
    : coarse.length
      ? `${fine.toLocaleString("en")} of ${plural(fenced, "step")} had a fine fence. After the others the next write waited for the whole forward:`
      : `All ${plural(fenced, "step")} had a fine fence: the next write waited only until the shared tables had been read.`;
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
  box.append(element("p", "Click a step in the list or in the timeline to see its fence."));
}

function tellFacts() {
  const { engine, summary, warcore } = data;
  const kept = summary.dropped_steps
    ? `the last ${plural(summary.steps, "step")} of ${(summary.steps + summary.dropped_steps).toLocaleString("en")}`
    : plural(summary.steps, "step");
  const device = engine.host ? `${engine.device} (${engine.host})` : engine.device;
  const runner = engine.graph_runner === "none" ? "no graph runner" : `graph runner ${engine.graph_runner}`;
  find("facts").textContent = [
    engine.model, `backend ${engine.backend}`, runner, engine.dtype, device, `${engine.loop} loop`, kept,
    time(total), `warcore ${warcore}`,
  ].filter(Boolean).join("\u00a0· ");
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
  if (summary.step_seconds) card("Time per decode step", time(summary.step_seconds * 1e9));
  const held = summary.tables_held;
  if (held !== null) card("Shared tables held", percent(held), [[held, "coarse"]], "of a forward");
}

function tellLegend() {
  const half = (name) => `linear-gradient(90deg, var(--${name}) 45%, var(--${name}-soft) 45%)`;
  const stripes = "repeating-linear-gradient(135deg, var(--hatch) 0 1.5px, var(--panel) 1.5px 5px)";
  const kinds = new Set(slices.map((s) => s.kind)), fences = new Set(steps.map((s) => s.fence));
  const items = [
    [fences.has("fine"), half("fine"), "fine fence: full colour while shared tables are read"],
    [fences.has("coarse"), "var(--coarse)", "coarse fence: full colour to the end"],
    [fences.has("failed"), "var(--failed)", "failed step"],
    [fences.has("unfenced"), "var(--unfenced-soft)", "no fence"],
    [kinds.has("write"), "var(--write)", "writes the shared tables"],
    [kinds.has("copy"), "var(--copy)", "copies inputs"],
    [kinds.has("wait"), stripes, "waits"],
    [kinds.has("phase"), "linear-gradient(90deg, var(--phase) 50%, var(--phase-alt) 50%)", "phases"],
    [kinds.has("prepare"), "linear-gradient(90deg, var(--prepare) 40%, var(--launch) 40% 75%, var(--collect) 75%)", "host work"],
    [marks.length, "", "◆ record  ◇ wait"],
    [kinds.has("work"), "var(--other)", "other work"],
  ];
  for (const [there, background, text] of items) {
    if (!there) continue;
    const item = element("li"), swatch = element("i");
    swatch.style.background = background;
    if (background) item.append(swatch);
    item.append(text);
    find("legend").append(item);
  }
}

function offerArrows() {
  const names = { fence: "fence → next write", inputs: "inputs → forward", results: "results → host", event: "other events" };
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

function reveal(step) {
  const at = listed.indexOf(step) * ROW;
  if (at < 0) return;
  if (at < list.scrollTop) list.scrollTop = at;
  else if (at + ROW > list.scrollTop + list.clientHeight) list.scrollTop = at + ROW - list.clientHeight;
}
