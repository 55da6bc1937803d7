// The live picture: what /live streams, drawn.

import { $, calm, count, milliseconds, rate, text } from "./dom.js";
import { Sparkline } from "./chart.js";
import { Lanes } from "./lanes.js";
import { TreeView } from "./tree.js";

/** Seconds over which rates are taken. */
const WINDOW = 2;

const lanes = new Lanes($("lanes"));
const tree = new TreeView($("tree"), $("tree-node"));
const charts = {
  output: new Sparkline($("chart-output"), ["decode"]),
  prompts: new Sparkline($("chart-prompts"), ["prefill"]),
  hits: new Sparkline($("chart-hits"), ["reused"], 1),
  requests: new Sparkline($("chart-requests"), ["queue", "in-use"]),
};

let hello = {};
let recent = [];
let hitRate = 0;
/** The server's time at a moment of the page's, so that pictures move between snapshots. */
let clock = { server: 0, page: 0 };
let quiet = 0;

export const showHello = (given, key) => {
  hello = given;
  recent = [];
  const parts = [given.model, given.formats, given.device].filter(Boolean);
  text("served", parts.join(" · "));
  document.title = given.model ? `${given.model} · Hearth` : "Hearth";
  tree.setSource(given.text, key);
};

export const showTree = (given) => {
  tree.set(given);
  const hidden = given.nodes - given.shown.length;
  text("tree-size", `${count(given.tokens)} tokens in ${count(given.nodes)} nodes`
    + (hidden > 0 ? `, of which ${count(hidden)} are not drawn` : ""));
  wake();
};

const split = (id, parts) => {
  const total = Object.values(parts).reduce((sum, value) => sum + value, 0);
  for (const [name, value] of Object.entries(parts)) {
    $(id).querySelector(`.${name}`).style.flexGrow = total ? value / total : 0;
  }
  return total;
};

const showPool = (kv) => {
  const parts = { "in-use": kv.protected, held: kv.held, cached: kv.evictable };
  for (const [name, value] of Object.entries(parts)) {
    $("pool").querySelector(`.${name}`).style.width = `${(100 * value) / kv.total}%`;
  }
  const used = kv.total - kv.free;
  text("pool-size", `${count(used)} of ${count(kv.total)} slots`);
  for (const name of ["protected", "held", "evictable", "free"]) text(`pool-${name}`, count(kv[name]));
  $("pool").setAttribute("aria-label", `${kv.protected + kv.held} slots in use, ${kv.evictable} cached, ${kv.free} free`);
};

const showSteps = (snapshots) => {
  const sum = (name) => snapshots.reduce((total, { steps }) => total + steps[name], 0);
  const steps = sum("count");
  if (!steps) {
    text("step-size", "none now");
    return;
  }
  const each = (name) => sum(name) / steps;
  const parts = { scheduler: each("scheduler"), forward: each("forward"), execute: each("execute") - each("forward") };
  const total = split("step", parts);
  text("step-size", `${milliseconds(total)}, execute ${milliseconds(each("execute"))}`);
  for (const [name, value] of Object.entries(parts)) text(`step-${name}`, milliseconds(Math.max(0, value)));
  $("step").setAttribute("aria-label", Object.entries(parts).map(([name, value]) => `${name} ${milliseconds(value)}`).join(", "));
};

export const showSnapshot = (snapshot) => {
  const { time } = snapshot;
  clock = { server: time, page: performance.now() / 1000 };
  if (!snapshot.counters) return;
  if (recent.length && time < recent.at(-1).time) recent = [];
  recent.push(snapshot);
  while (recent.length > 2 && recent[1].time <= time - WINDOW) recent.shift();
  const [first] = recent;
  const seconds = Math.max(time - first.time, 0.05);
  const since = (name) => snapshot.counters[name] - first.counters[name];
  const output = recent.length > 1 ? since("generated_tokens") / seconds : 0;
  const prompts = recent.length > 1 ? since("prompt_tokens") / seconds : 0;
  if (since("prompt_tokens") > 0) hitRate = since("cached_tokens") / since("prompt_tokens");
  const hasPrompts = snapshot.counters.prompt_tokens > 0;
  if (hasPrompts && recent.length < 3 && hitRate === 0) {
    hitRate = snapshot.counters.cached_tokens / snapshot.counters.prompt_tokens;
  }

  text("output", rate(output));
  text("prompts", rate(prompts));
  text("hits", hasPrompts ? `${Math.round(100 * hitRate)} %` : "–");
  text("running", count(snapshot.running));
  text("waiting", count(snapshot.waiting));
  const { batch } = snapshot;
  const rows = batch.reduce((total, [, tokens]) => total + tokens, 0);
  const prefills = batch.filter(([, tokens]) => tokens > 1).length;
  text("batch-size", rows
    ? `${count(rows)} tokens: ${prefills} prefill, ${batch.length - prefills} decode`
    : `room for ${count(hello.max_running ?? 0)} requests`);
  charts.output.push(time, [output]);
  charts.prompts.push(time, [prompts]);
  charts.hits.push(time, [hitRate]);
  charts.requests.push(time, [snapshot.running + snapshot.waiting, snapshot.running]);
  showPool(snapshot.kv);
  showSteps(recent);
  lanes.push(snapshot);
  quiet = snapshot.running + snapshot.waiting > 0 ? 0 : quiet + 1;
  wake();
};

let drawing = false;

const draw = () => {
  drawing = false;
  if ($("live").hidden || document.hidden) return;
  const now = clock.server + Math.min(1.5, performance.now() / 1000 - clock.page);
  for (const chart of Object.values(charts)) chart.draw(now);
  lanes.draw(now);
  const moves = tree.draw();
  // A server that has been idle for a minute is drawn with each snapshot only.
  if (moves || (quiet < 60 && !calm.matches)) wake();
};

const wake = () => {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
};

addEventListener("resize", wake);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", wake);
tree.onChange = wake;
