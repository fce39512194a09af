// Explanation of a node's score: the reason of each plug-in first, inputs and steps on request.

import { el } from "../common/dom.js";
import { NONE, bytes, plain, seconds } from "../common/format.js";

/** The reasons of the filters that reject the node; if none does, the reasons of the scoring plug-ins. */
export function reasonOf(node) {
  const rejecting = node.plugins.filter((each) => each.point === "filter" && !each.passes);
  const deciding = rejecting.length ? rejecting : node.plugins.filter((each) => each.point === "score");
  return deciding.map((each) => (deciding.length === 1 ? each.reason : `${each.name}: ${each.reason}`)).join("; ");
}

export function score(value) {
  return value == null ? NONE : value.toFixed(1);
}

export function scoreOf(node) {
  return node.passes ? score(node.score) : "rejected";
}

export function explanation(node, time) {
  const age = node.sampled == null ? "no metrics" : `newest sample ${seconds(Math.max(0, time - node.sampled))} old`;
  const raw = node.plugins.filter((plugin) => Object.keys({ ...plugin.inputs, ...plugin.steps }).length);
  return el("div", {},
    el("p", {}, el("strong", {}, node.passes ? `Score ${scoreOf(node)} of 100` : "Rejected"), `, ${age}`),
    node.plugins.map((plugin) => el("section.plugin", {},
      el("h3", {}, `${plugin.name} `, el("span.quiet", {}, kindOf(plugin))),
      el("p", {}, plugin.reason),
      el("dl.steps", {}, pairs(readable(plugin))))),
    raw.length ? el("details.raw", {}, el("summary", {}, "Show every number"), raw.map((plugin) => [el("h3", {}, plugin.name),
      el("dl.steps", {}, pairs(Object.entries({ ...plugin.inputs, ...plugin.steps }).map(([name, value]) => [name, plain(value)])))]).flat()) : null);
}

function pairs(entries) {
  return entries.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
}

function kindOf({ point, passes, score: value, weight }) {
  if (point === "filter") return passes ? "filter, passes" : "filter, rejects";
  return `${value == null ? "no score" : score(value)}${weight === 1 ? "" : ` × weight ${weight}`}`;
}

// --- inputs and steps with units -------------------------------------------------------------------------------------
// load_watcher/scoring/score_texts.py has the same rules; tests/real/test_dashboard.py compares their texts.

const OF_BYTES = /^(memory|ephemeral-storage|hugepages-.*)$/;
const AMOUNTS = new RegExp("^(\\S+) (capacity|allocatable|measured|of recent pods|of pods not measured yet|with the pod"
  + "|limits|limits, with the pod|requests, with the pod|requested, with the pod)$");
const SHARES = /^\S+ (mean|deviation)$/;

/** An amount of a resource with its unit; cpu is given in millicores. */
export function amountOf(resource, value) {
  if (value == null) return "unknown";
  if (resource === "cpu") return `${(value / 1000).toFixed(value % 100 ? 2 : 1)} cores`;
  return OF_BYTES.test(resource) ? bytes(value) : plain(value);
}

/** [name, text] of each input and step of a plug-in, with units and rounded; "show every number" has the exact values. */
export function readable({ inputs = {}, steps = {} }) {
  return [...Object.entries(inputs).map(([name, value]) => [name, inputText(name, value)]), ...Object.entries(steps).map(stepText)];
}

function inputText(name, value) {
  if (name === "podRequest") return amountOf("cpu", value);
  if (typeof value !== "object" || value == null) return name.endsWith("Utilization") ? `${plain(value)} %` : plain(value);
  const unit = name.startsWith("pod") ? amountOf : name.endsWith("Thresholds") ? (_, each) => `${plain(each)} %` : (_, each) => plain(each);
  return Object.entries(value).map(([resource, each]) => `${resource} ${unit(resource, each)}`).join(", ") || "none";
}

function stepText([name, value]) {
  const amount = AMOUNTS.exec(name);
  if (amount) return [name, amountOf(amount[1], value)];
  const share = SHARES.test(name);
  if (typeof value !== "number" || !(share || name.endsWith(" %"))) return [typeof value === "number" ? name : name.replace(/ %$/, ""), typeof value === "number" ? rounded(value) : plain(value)];
  return [name.replace(/ %$/, ""), `${(share ? 100 * value : value).toFixed(1)} %`];
}

function rounded(value) {
  return plain(Number(value.toPrecision(4)));
}
