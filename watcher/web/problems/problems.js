// Problems as sentences: the list at the top of the fleet, the state in the header, and rows of the view of findings.

import { el } from "../common/dom.js";
import { count } from "../common/format.js";
import { copyButton } from "../fleet/table.js";
import { linked } from "../terms/definitions.js";

export const NEEDED = ["critical", "warning"]; // severities that need an action
const MOST = matchMedia("(max-width: 45rem)").matches ? 2 : 5; // on a phone, the nodes follow at once
const MOST_MARKED = 200; // names in an address
const SERVICE = "service", PROFILE = "profile";
const STATES = ["silent", "stale", "lost", "quarantined", "unheard"];

/** The problems that need an action. */
export function needed(problems) {
  return (problems?.problems ?? []).filter((each) => NEEDED.includes(each.severity));
}

/** The state of the fleet for the header: [text, class], null if nothing needs an action. */
export function worst(problems) {
  const { critical = 0, warning = 0 } = problems?.counts ?? {};
  if (!critical && !warning) return null;
  const parts = [critical ? `${critical} critical` : "", warning ? count(warning, "warning") : ""].filter(Boolean);
  return [parts.join(", "), critical ? "bad" : "warn"];
}

/** The address of what a problem is about: the node, or the fleet with the nodes. */
export function addressOf({ nodes, kind }) {
  if (nodes.length === 1) return `#/node/${encodeURIComponent(nodes[0])}`;
  if (STATES.includes(kind)) return `#/fleet?as=table&state=${kind}`;
  if (nodes.length) return `#/fleet?highlight=${nodes.slice(0, MOST_MARKED).map(encodeURIComponent).join(",")}`;
  return kind === PROFILE ? "#/shadow" : `#/findings?kind=${kind}`;
}

/** The sentence; the name of the node at its start is a link, or the whole sentence if it is about several nodes or a
 *  profile. */
export function sentence(problem) {
  const [node] = problem.nodes, { text } = problem;
  if (problem.nodes.length === 1 && text.startsWith(node)) {
    return [el("a", { href: addressOf(problem) }, node), text.slice(node.length)];
  }
  return [problem.nodes.length || problem.kind === PROFILE ? el("a", { href: addressOf(problem) }, text) : text];
}

/** The cure and the next command. */
export function cure(problem) {
  return el("p.cure", {}, el("span", {}, linked(problem.cure)), problem.command
    ? el("span.command", {}, el("code", {}, problem.command), copyButton(problem.command, "the command")) : null);
}

export function badge(severity) {
  return el(`span.badge.${severity}`, {}, severity);
}

/** The list at the top of the fleet; null while the problems are unknown. The banner shows why a service is not ready. */
export function problemsPanel(problems) {
  if (!problems || (problems.problems.length === 1 && problems.problems[0].kind === SERVICE)) return null;
  const all = needed(problems).filter((each) => each.kind !== SERVICE), rest = all.length - MOST, notes = problems.counts.info;
  if (!all.length) {
    return el("p.quiet.calm", {}, "Nothing needs an action.", notes ? [" ", el("a", { href: "#/findings" }, count(notes, "note"))] : null);
  }
  const items = all.slice(0, MOST).map((each) => el("li", {}, badge(each.severity), el("div", {}, el("p", {}, sentence(each)), cure(each))));
  const more = [rest > 0 ? `${count(rest, "more problem")}` : "", notes ? count(notes, "note") : ""].filter(Boolean).join(" and ");
  return el("section.card.problems", { "aria-label": "Problems" }, el("ul", {}, items),
    more ? el("p", {}, el("a", { href: "#/findings" }, more)) : null);
}
