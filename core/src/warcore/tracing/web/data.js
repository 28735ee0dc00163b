"use strict";
// The trace in #data, and the words for it. Its texts reach the page as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const word = (place) => data.words[place];
const slices = data.slices.map(([lane, kind, name, begin, length, step, inside, failed]) => ({
  lane, kind: word(kind), name: word(name), begin, end: begin + length, step, inside, failed,
}));
const marks = data.marks.map(([lane, kind, event, generation, at, step]) => ({
  lane, kind: word(kind), event: word(event), generation, at, step,
})).sort((a, b) => a.at - b.at);
const arrows = data.arrows.map(([kind, event, generation, source, begin, target, end, step]) => ({
  kind: word(kind), event: word(event), generation, source, begin, target, end, step,
}));
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
  barrier: "the host makes later writes wait for the fence",
  collect: "the host takes the results",
  copy: "values of the host are copied to the device",
  write: "the shared tables are written",
  wait: "the schedule stream waits for the step's fence",
  forward: "the step runs: metadata, layers, sampling",
  phase: "a phase of the step",
  work: "other work of this stream",
};
