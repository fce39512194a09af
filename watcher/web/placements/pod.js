// The page of one pod: why the pod runs on its node, and why not on another one, as `load-watcher why`.

import { ApiError, ask } from "../common/api.js";
import { el, notice, renew, select, table } from "../common/dom.js";
import { NONE, count, moment, seconds } from "../common/format.js";
import { highlightHref, nodeLink, podHref } from "./podlink.js";
import { amountOf, score } from "../score/why.js";

export function placementView(app) {
  const [namespace, ...rest] = app.argument.split("/");
  const name = rest.join("/");
  const place = el("div.stack", {}, notice("loading…"));
  const root = el("div.stack", {}, el("h2", {}, `Pod ${namespace}/${name}`),
    el("p", {}, el("a", { href: "#/placements" }, "All placements")), place);
  let shown = ""; // what is shown, to leave text in place that the user may be selecting

  const show = (...parts) => renew(place, ...parts.filter(Boolean));

  /** Compares the chosen node with another one; the address has its name. */
  function compared(decision) {
    const nodes = decision.ranking?.nodes ?? [];
    const here = nodes.find((node) => node.chosen) ?? nodes[0];
    const others = candidatesOf(decision).filter((each) => each.name !== here?.name);
    if (!here || !others.length) return null;
    const there = others.find((each) => each.name === app.params.get("node")) ?? others[0];
    const answer = el("div.stack", { role: "status" }, difference(here, there, decision));
    const chooser = select("Other node", others.map((each) => [each.name, each.name]), there.name, (chosen) => {
      app.set({ node: chosen });
      answer.replaceChildren(difference(here, others.find((each) => each.name === chosen), decision));
    });
    const title = decision.outcome.node === here.name ? `Why ${here.name} and not another node?` : `The best node ${here.name} and another node`;
    return el("section.card", {}, el("h2", {}, title), el("div.tools", {}, chooser), answer);
  }

  async function refresh() {
    const { overview } = app.state;
    if (overview && !overview.scheduler) return withoutDecision(null);
    const at = app.params.get("at");
    try {
      const path = `scheduler/decisions?pod=${encodeURIComponent(`${namespace}/${name}`)}&missing=empty${at ? `&at=${encodeURIComponent(at)}` : ""}`;
      const { body } = await ask(path);
      if (!body.decision) return withoutDecision({ message: body.reason, hint: body.hint, runs: body.now });
      const now = `${body.decision.time} ${body.decision.outcome.sentence} ${body.others.length}`;
      if (now === shown) return;
      shown = now;
      const { decision } = body;
      show(summary(decision), filtered(decision.filter), ranking(decision), compared(decision), others(body, namespace, name));
      return null;
    } catch (error) {
      if (!(error instanceof ApiError) || !error.status) throw error;
      return withoutDecision(error);
    }
  }

  /** `error` says why, and may have the node of the pod (`runs`); it is null without scheduling plug-ins. */
  async function withoutDecision(error) {
    const runs = error?.runs ?? (app.state.overview?.pods.known ? await measured(namespace, name) : null);
    const now = `${error?.message} ${runs?.node}`, off = error === null;
    if (now === shown) return;
    shown = now;
    show(el("section.card.stack", {},
      el("p", {}, off ? "No decision about this pod is recorded, because no scheduling plug-ins are configured." : `${sentence(error.message)}.`),
      runs?.node ? el("p", {}, "The pod runs on ", nodeLink(runs.node), runs.since == null ? "." : `, since ${moment(runs.since)}.`)
        : el("p", {}, runs ? "The pod exists and is not bound to a node." : "load-watcher does not know a node of this pod."),
      off ? null : el("p.quiet", {}, `${sentence(error.hint)}.`)));
  }

  return { title: `${namespace}/${name}`, root, update() {}, refresh, wants: "pods" };
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The node of a pod by the source of pod usage; null if it is unknown. */
async function measured(namespace, name) {
  try {
    const { body } = await ask(`api/v1/pods?namespace=${encodeURIComponent(namespace)}&missing=empty`);
    const row = body.pod.findIndex((pod, i) => pod === name && body.namespace[i] === namespace);
    return row < 0 ? null : { node: body.node[row] };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return null;
  }
}

function summary(decision) {
  const { outcome, load, pod } = decision;
  const amounts = Object.entries(pod.requests).filter(([, value]) => value).map(([resource, value]) => `${resource} ${amountOf(resource, value)}`).join(", ") || "nothing";
  return el("section.card.stack", {},
    el("p.sentence", {}, sentence(outcome.sentence), "."),
    outcome.node ? el("p", {}, "Node: ", nodeLink(outcome.node)) : null,
    el("p.quiet", {}, `Decided ${moment(decision.time)} by the profile ${decision.profile}. The pod requests ${amounts}. `,
      load ? `Load from ${load.source}, mean of ${load.window}, ${seconds(load.age_s)} old at that time.` : "No load data at that time."),
    Object.entries(decision.fallbacks).map(([plugin, instead]) => el("p.warn", {}, `${plugin} had no load data and used: ${instead}.`)));
}

function filtered(answer) {
  if (!answer) return null;
  const rows = answer.plugins.flatMap((plugin) => plugin.rejected.map((each) => [
    plugin.name, String(each.count), each.reason, el("span", {}, each.nodes.flatMap((node, i) =>
      [i ? "; " : "", nodeLink(node), each.details?.[node] ? `: ${each.details[node]}` : ""]),
    each.count > each.nodes.length ? ` and ${count(each.count - each.nodes.length, "more node")}` : ""),
  ]));
  const unknown = answer.unknown ? `, ${answer.unknown.toLocaleString("en")} of them unknown to load-watcher` : "";
  return el("section.card", {}, el("h2", {}, "Filter"),
    el("p.quiet", {}, `${answer.passed.toLocaleString("en")} of ${count(answer.asked, "node")} passed${unknown}.`),
    rows.length ? table("Rejected nodes", [["Plug-in"], ["Nodes", "number"], ["Reason", "long"], ["Which", "long"]], rows) : null);
}

function ranking({ ranking: ranked }) {
  if (!ranked) return null;
  const rows = ranked.nodes.map((node) => [
    nodeLink(node.name), String(node.rank), score(node.score),
    el("span", {}, node.chosen ? el("strong", {}, "chosen: ") : null, reasonsOf(node)),
  ]);
  const made = table("Recorded ranking", [["Node"], ["Rank", "number"], ["Score", "number"], ["Reason", "long"]], rows);
  made.querySelectorAll("tbody tr").forEach((row, i) => row.classList.toggle("chosen", ranked.nodes[i].chosen));
  return el("section.card", {}, el("h2", {}, `Ranking of ${count(ranked.of, "node")}`),
    el("p", {}, el("a", { href: highlightHref(ranked.nodes.map((node) => node.name)) }, "Show these candidates in the fleet")),
    made, ranked.of > ranked.nodes.length ? el("p.quiet", {}, `The best ${ranked.nodes.length} nodes are recorded, and the chosen one.`) : null);
}

function reasonsOf(node) {
  return node.plugins.map((each) => (node.plugins.length === 1 ? each.reason : `${each.name} ${score(each.score)}: ${each.reason}`)).join("; ");
}

/** The recorded nodes: those of the ranking, and the rejected ones with the reason. */
function candidatesOf(decision) {
  const rejected = (decision.filter?.plugins ?? []).flatMap((plugin) => plugin.rejected.flatMap((each) => each.nodes.map((name) =>
    ({ name, rejected: `${plugin.name} rejected it: ${[each.reason, each.details?.[name]].filter(Boolean).join(", ")}` }))));
  return [...(decision.ranking?.nodes ?? []), ...rejected.filter((each, i) => rejected.findIndex((one) => one.name === each.name) === i)];
}

function difference(here, there, { ranking: ranked }) {
  if (there.rejected) return el("p", {}, nodeLink(there.name), ": ", there.rejected, ".");
  const total = here.score - there.score;
  const verdict = total === 0 ? `Both score ${score(here.score)}`
    : `${here.name} scores ${score(here.score)}, ${there.name} ${score(there.score)}`;
  const rows = here.plugins.map((plugin, i) => {
    const other = there.plugins[i];
    const weight = ranked.plugins[i].weight;
    return [weight === 1 ? plugin.name : `${plugin.name} × ${weight}`, score(plugin.score), score(other.score), plugin.reason, other.reason];
  });
  return el("div.stack", {}, el("p", {}, verdict, "."),
    table(`${here.name} and ${there.name}`, [["Plug-in"], [here.name, "number"], [there.name, "number"], [`Reason, ${here.name}`],
      [`Reason, ${there.name}`]], rows));
}

function others(body, namespace, name) {
  if (!body.others.length) return null;
  const rows = body.others.map((each) => [
    el("a", { href: podHref(namespace, name, each.time) }, moment(each.time)), (each.outcome ?? NONE).replace("_", " "),
    each.node ? nodeLink(each.node) : NONE,
  ]);
  return el("section.card", {}, el("h2", {}, "Other decisions about this pod"), table("Other decisions", [["Time"], ["Outcome"], ["Node"]], rows));
}
