// The load of a node as a state in words and as bars with requests and limits.

import { el } from "../common/dom.js";
import { NONE, bytes, cores, moment, percent, seconds } from "../common/format.js";
import { LABELS, METRICS, STATES } from "../load.js";
import { term } from "../terms/definitions.js";
import { heat } from "../common/theme.js";

const HOT_PERCENT = 85, BUSY_PERCENT = 60; // as in the definitions of these terms
const OUTSIDE_PERCENT = 5; // least share of the capacity that is used outside of pods to be listed

/** The state of a node in one or two words: of its samples, or of its load if the samples are recent. */
export function condition(node) {
  if (!node) return [];
  const highest = ["cpu", "memory"].filter((each) => node[each]).sort((a, b) => node[b].mean - node[a].mean)[0];
  const load = highest ? node[highest].mean : null;
  const [key, kind] = node.state !== STATES.fresh ? [node.state, node.state === STATES.silent ? "bad" : "warn"]
    : load >= HOT_PERCENT ? ["hot", "bad"] : load >= BUSY_PERCENT ? ["busy", "warn"] : [null, "good"];
  const words = node.state !== STATES.fresh ? inWords(node) : key ? `${key}: ${METRICS[highest]} at ${percent(load)} (${node[highest].window})` : load == null ? "load unknown" : "normal load";
  return [el(`span.condition.${kind}`, {}, key ? term(key, words) : words)];
}

function inWords(node) {
  const age = seconds(node.age ?? 0);
  return {
    [STATES.stale]: `stale: newest sample ${age} old`, [STATES.lost]: `lost ${age} ago`,
    [STATES.silent]: `silent for ${age}${node.last ? `, since ${moment(node.last.sampled)}` : ""}`, [STATES.unheard]: LABELS.unheard,
  }[node.state] ?? LABELS[node.state];
}

const RESOURCES = [["cpu", "CPU", (value) => `${cores(value / 1000)} cores`], ["memory", "Memory", bytes]];

export function barsOf(node, known, overview) {
  if (!node.cpu && !node.memory) return [el("p", {}, "No current load: ", term(node.state, inWords(node)), ".")];
  const knows = known?.known ?? false;
  return [el("div.bars", {}, RESOURCES.map(([key, label, amount]) => bar(node[key], label, amount, Object.fromEntries(
    ["capacity", "allocatable", "requested", "limits"].map((each) => [each, knows ? known[each]?.[key] : null]))))),
  knows || !overview || overview.scheduler ? "" : el("p.quiet", {}, "Requests, limits and allocatable are unknown without the Kubernetes API; see below.")];
}

/** A bar of the capacity: filled up to the used share, with marks at requested and allocatable, and all numbers. */
function bar(load, label, amount, { capacity, allocatable, requested, limits }) {
  const share = (value) => (value == null || !capacity ? null : (100 * value) / capacity);
  const used = load?.mean ?? null;
  const fill = el("span.fill"), track = el("div.track", { "aria-hidden": "true" }, fill);
  fill.style.width = `${Math.min(100, used ?? 0)}%`;
  fill.style.background = heat(used ?? 0).fill;
  for (const [kind, value] of [["requested", share(requested)], ["allocatable", share(allocatable)]]) {
    if (value == null) continue;
    const mark = el(`span.mark.${kind}`);
    mark.style.left = `${Math.min(100, value)}%`;
    track.append(mark);
  }
  const numbers = [
    ["used", used == null ? NONE : percent(used), [capacity ? `${amount((used * capacity) / 100)}` : "", load?.deviation == null ? "" : `± ${percent(load.deviation)}`, load?.window ?? ""]],
    ...[["requested", requested], ["allocatable", allocatable], ["limits", limits]].filter(([, value]) => value != null)
      .map(([key, value]) => [key, share(value) == null ? amount(value) : percent(share(value), 0), [share(value) == null ? "" : amount(value)]]),
  ];
  return el("div.resource", {}, el("h3", {}, label, capacity ? el("span.quiet", {}, ` of ${amount(capacity)}`) : null), track,
    el("dl", {}, numbers.map(([key, large, small]) => el("div", {}, el(`dt.${key}`, {}, term(key)),
      el("dd", {}, el("b", {}, large), el("small", {}, small.filter(Boolean).join(", ")))))));
}

/** Cores that the node uses outside of its pods; null if unknown or small. */
export function outsideOf(pods, node, capacity) {
  if (!node?.cpu || !capacity.cpu || pods.some((pod) => pod.cores == null)) return null;
  const left = (node.cpu.mean * capacity.cpu) / 100_000 - pods.reduce((sum, pod) => sum + pod.cores, 0);
  return (100_000 * left) / capacity.cpu >= OUTSIDE_PERCENT ? { cores: left } : null;
}

export function shareOf(value, capacity) {
  if (value == null || !capacity) return "";
  const share = (100 * value) / capacity;
  return share > 0 && share < 1 ? "<1 %" : percent(share, 0);
}
