// Explanation of a node's score: the reason, inputs and steps of each plug-in.

import { el } from "./dom.js";
import { plain, seconds } from "./format.js";

/** The reasons of the filters that reject the node; if none does, the reasons of the scoring plug-ins. */
export function reasonOf(node) {
  const rejecting = node.plugins.filter((each) => each.point === "filter" && !each.passes);
  const deciding = rejecting.length ? rejecting : node.plugins.filter((each) => each.point === "score");
  return deciding.map((each) => (deciding.length === 1 ? each.reason : `${each.name}: ${each.reason}`)).join("; ");
}

export function scoreOf(node) {
  return node.passes ? node.score.toFixed(1) : "rejected";
}

export function explanation(node, time) {
  const age = node.sampled == null ? "no metrics" : `newest sample ${seconds(Math.max(0, time - node.sampled))} old`;
  return el("div", {},
    el("p", {}, el("strong", {}, node.passes ? `Score ${scoreOf(node)} of 100` : "Rejected"), `, ${age}`),
    node.plugins.map((plugin) => el("section.plugin", {},
      el("h3", {}, `${plugin.name} `, el("span.quiet", {}, kindOf(plugin))),
      el("p", {}, plugin.reason),
      el("dl.steps", {}, Object.entries({ ...plugin.inputs, ...plugin.steps }).map(([name, value]) =>
        [el("dt", {}, name), el("dd", {}, plain(value))]).flat()))));
}

function kindOf({ point, passes, score, weight }) {
  if (point === "filter") return passes ? "filter, passes" : "filter, rejects";
  return `${score == null ? "no score" : score.toFixed(1)}${weight === 1 ? "" : ` × weight ${weight}`}`;
}
