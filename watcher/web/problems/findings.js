// Problems with their cures, grouped by node and cause, and the queries to the source.

import { ask } from "../common/api.js";
import { el, field, numbers, renew, select, table } from "../common/dom.js";
import { NONE, count, moment, seconds } from "../common/format.js";
import { badge, cure, sentence } from "./problems.js";
import { TERMS, term } from "../terms/definitions.js";

const MOST = 200;
const SEVERITIES = [["", "all"], ["critical", "critical"], ["warning", "warning"], ["info", "info"]];
const REVIEW = {
  enforce: ["on", "implausible samples are dropped"], observe: ["reports only", "implausible samples are reported and used"],
};

const NO_START = { unheard: "no sample yet", quarantined: "start not recorded" };

export function findingsView(app) {
  const summary = el("div"), tools = el("div.tools"), list = el("div"), terms = el("p.fine"), sources = el("div");
  const root = el("div.stack", {}, summary, el("section.card", {}, el("h2", {}, "Findings"), tools, list, terms),
    el("section.card", {}, el("h2", {}, "Queries to the source"), sources));
  let found = null, built = "", listed = "";

  const get = (name) => app.params.get(name) ?? "";

  function build(causes) {
    tools.replaceChildren(
      select("Severity", SEVERITIES, get("severity"), (severity) => app.set({ severity })),
      select("Cause", [["", "all causes"], ...causes], get("kind"), (kind) => app.set({ kind })),
      field("Node contains", { type: "search", value: get("text"), oninput: (event) => app.set({ text: event.target.value }) }));
  }

  function update() {
    const { problems } = app.state;
    if (!found || !problems) return;
    const causes = [...new Map(problems.problems.map((each) => [each.kind, each.cause]))].sort(([, a], [, b]) => a.localeCompare(b));
    if (built !== String(causes) && !tools.contains(document.activeElement)) {
      built = String(causes);
      build(causes);
    }
    const text = get("text").toLowerCase(), kind = get("kind"), severity = get("severity");
    const some = problems.problems.filter((each) => (!kind || each.kind === kind) && (!severity || each.severity === severity)
      && (!text || each.nodes.some((node) => node.toLowerCase().includes(text))));
    renew(summary, totalsOf(problems));
    showTerms(causes.map(([kind]) => kind));
    const now = JSON.stringify([some, problems.timestamp]);
    if (now !== listed) {
      listed = now;
      showList(some, problems.timestamp);
    }
    renew(sources, table("Queries to the source", [["Metric", "code"], ["Expression", "code"], ["Node label"], ["Reason", "long"]],
      found.sources.map((each) => [each.metric, each.expression, each.node_label, each.reason]), { empty: "none yet" }));
  }

  function totalsOf({ counts, problems }) {
    const { provider, snapshot } = app.state.overview ?? {};
    const number = (severity) => el("a", { href: `#/findings?severity=${severity}` }, String(counts[severity]));
    return numbers([
      ["Critical", [number("critical"), "act now"]], ["Warnings", [number("warning"), "act soon"]], ["Notes", [number("info"), "no action needed"]],
      ["Affected nodes", String(new Set(problems.flatMap((each) => each.nodes)).size)],
      ["Review of samples", REVIEW[found.review_mode] ?? found.review_mode],
      ["Source", [snapshot?.source ?? "–", provider?.ok === false ? provider.reason : provider?.ok ? "responds" : "not queried yet"]],
    ]);
  }

  /** The definitions of the causes, made again only if these change, so that an open one stays open. */
  function showTerms(kinds) {
    const used = ["finding", "window", ...kinds.filter((kind) => Object.hasOwn(TERMS, kind))];
    if (terms.dataset.about === String(used)) return;
    terms.dataset.about = String(used);
    terms.replaceChildren("Terms: ", ...used.flatMap((key, i) => [
      el("span.unbroken", {}, term(key), i < used.length - 1 ? "," : "."), " "]));
  }

  function showList(some, now) {
    const rows = some.slice(0, MOST).map((each) => [
      badge(each.severity), el("div", {}, el("p", {}, sentence(each)), cure(each)), each.since == null ? unknownStart(each) : span(each.since, now),
      each.last_seen == null ? "now" : span(each.last_seen, now), each.findings ? String(each.findings) : NONE,
    ]);
    const rest = some.length - MOST;
    renew(list, el("div.findings-table", {}, table("Findings", [["Severity", "severity"], ["Problem and what to do", "long"], ["Since", "name"],
      ["Last seen", "name"], ["Count", "number"]], rows, { empty: "no findings" })), rest > 0 ? el("p.quiet", {}, `and ${count(rest, "more finding")}: filter by cause or node`) : "");
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

/** Without a time, why there is none. */
function unknownStart({ kind }) {
  return el("span", {}, `${NONE} `, el("span.quiet", {}, NO_START[kind] ?? "start not known"));
}

function span(time, now) {
  return el("span", { title: moment(time) }, `${seconds(Math.max(0, now - time))} ago`);
}
