// Findings of the sample review with their remedies, and the queries to the source.

import { ask } from "./api.js";
import { el, field, numbers, renew, select, table } from "./dom.js";
import { clock, count, seconds } from "./format.js";

const MOST = 200;

export function findingsView(app) {
  const summary = el("div"), tools = el("div.tools"), list = el("div"), sources = el("div");
  const root = el("div.stack", {}, summary, el("section.card", {}, el("h2", {}, "Findings"), tools, list),
    el("section.card", {}, el("h2", {}, "Queries to the source"), sources));
  let found = null, built = "";

  function update() {
    if (!found) return;
    const kinds = [...new Set(found.findings.map((each) => each.kind))].sort();
    if (built !== kinds.join()) {
      built = kinds.join();
      tools.replaceChildren(
        select("Kind", [["", "all kinds"], ...kinds.map((kind) => [kind, kind])], app.params.get("kind") ?? "", (kind) => app.set({ kind })),
        field("Node contains", { type: "search", value: app.params.get("text") ?? "", oninput: (event) => app.set({ text: event.target.value }) }));
    }
    const text = (app.params.get("text") ?? "").toLowerCase(), kind = app.params.get("kind") ?? "";
    const some = found.findings.filter((each) => (!kind || each.kind === kind) && each.node.toLowerCase().includes(text));
    const { provider, snapshot } = app.state.overview ?? {};
    summary.replaceChildren(numbers([
      ["Findings", [String(found.findings.length), `review: ${found.review_mode}`]],
      ["Affected nodes", String(new Set(found.findings.map((each) => each.node).filter(Boolean)).size)],
      ["Provider", [snapshot?.source ?? "–", provider?.ok === false ? provider.reason : provider?.ok ? "responds" : "not queried yet"]],
    ]));
    const ago = (time) => `${seconds(Math.max(0, found.timestamp - time))} ago`;
    const rows = some.slice(0, MOST).map((each) => [
      each.kind, each.node ? el("a", { href: `#/node/${encodeURIComponent(each.node)}` }, each.node) : "all nodes", each.metric || "all",
      each.reason, each.remedy, String(each.count), el("span", { title: clock(each.first_seen) }, ago(each.first_seen)), ago(each.last_seen),
    ]);
    const rest = some.length - MOST;
    renew(list, table("Findings", [["Kind"], ["Node", "name"], ["Metric", "code"], ["Reason", "long"], ["Remedy"], ["Count", "number"],
      ["First seen", "name"], ["Last seen", "name"]], rows, { empty: "no findings" }), rest > 0 ? el("p.quiet", {}, `and ${count(rest, "more finding")}`) : "");
    renew(sources, table("Queries to the source", [["Metric", "code"], ["Expression", "code"], ["Node label"], ["Reason", "long"]],
      found.sources.map((each) => [each.metric, each.expression, each.node_label, each.reason]), { empty: "none yet" }));
  }

  return {
    title: "Findings", root, update,
    async refresh() {
      const { body } = await ask("api/v1/findings");
      found = body;
      update();
    },
  };
}
