// The view of one node: its load with requests and limits, the pods that make it, history, findings and scores.

import { ApiError, ask, post } from "./api.js";
import { missing, styles, term } from "./definitions.js";
import { choice, el, renew, table, told } from "./dom.js";
import { NONE, bytes, cores, count, moment, percent, plain, seconds } from "./format.js";
import { HistoryCharts } from "./history.js";
import { LABELS, METRICS, STATES, chosen } from "./load.js";
import { pasted } from "./manifest.js";
import { podLink } from "./podlink.js";
import { heat } from "./theme.js";
import { explanation, reasonOf, scoreOf } from "./why.js";

const RANGES = [["-1h", "1 h", 3600, "1m"], ["-6h", "6 h", 21600, "2m"], ["-24h", "24 h", 86400, "5m"]];
const FIRST_PODS = 8;
const HOT_PERCENT = 85, BUSY_PERCENT = 60; // as in the definitions of these terms
const OUTSIDE_PERCENT = 5; // least share of the capacity that is used outside of pods to be listed
const ORDERS = { load: "by load", deviation: "by deviation", age: "longest silent first", name: "by name" };
const LABEL_KEYS = [["node.kubernetes.io/instance-type", ""], ["topology.kubernetes.io/zone", "zone "]];
const SCHEDULER = `[scheduler.default]
plugins = [{ name = "TargetLoadPacking" }]`;

export function nodeView(app) {
  styles("node.css");
  const name = app.argument;
  const heading = el("h2"), facts = el("p.quiet"), way = el("nav.way", { "aria-label": "Nodes" });
  const bars = el("div"), pods = el("div"), findings = el("div"), scores = el("div"), known = el("div"), charts = el("div.columns"), more = el("div.columns");
  const ranges = el("div.tools"), unknown = el("div");
  const deviations = el("details", { open: matchMedia("(min-width: 40rem)").matches }, el("summary", {}, "Deviation"), more);
  const sections = [
    el("section.card", {}, el("h2", {}, "Load"), bars), el("section.card", {}, el("h2", {}, "Pods that make the load"), pods),
    el("section.card", {}, el("h2", {}, "History of the ", term("window", "windows")), ranges, charts, deviations),
    el("div.columns", {}, el("section.card", {}, el("h2", {}, "Findings"), findings), el("section.card", {}, el("h2", {}, "Scores"), scores)),
    known,
  ];
  const root = el("div.stack.node", {}, way, el("div", {}, heading, facts), unknown, ...sections);
  const pictures = new HistoryCharts(charts, more);
  let built = "", ofScheduler = null, podRows = null, all = false, absent = false, nothingStored = false;

  const find = () => app.state.nodes.find((each) => each.name === name);

  function update() {
    const node = find();
    renew(way, ...wayOf(app, name));
    changed(heading, [node], () => [`${name} `, ...badge(node)]);
    facts.replaceChildren(...factsOf(node, ofScheduler));
    changed(bars, [node, ofScheduler?.capacity, ofScheduler?.allocatable, ofScheduler?.requested, ofScheduler?.limits, app.state.overview?.scheduler],
      () => (node ? barsOf(node, ofScheduler, app.state.overview) : [el("p.quiet", {}, "The current load is unknown.")]));
    if (podRows) showPods();
    absent = !node && !app.nothing() && app.state.overview != null;
    if (absent && !pictures.charts.length) unknown.replaceChildren(nowhere(app, name));
    else unknown.replaceChildren(...(node || !app.nothing() ? [] : [app.nothing()]));
    for (const each of sections) each.hidden = absent && each !== sections[2];
    sections[2].hidden = absent && !pictures.charts.length;
    if (built === range()) return;
    built = range();
    renew(ranges, choice("Time range", RANGES.map(([value, label]) => [value, label]), built, (wanted) => {
      built = wanted;
      app.set({ range: wanted });
      pictures.range = "";
      askHistory().catch(() => {});
    }));
  }

  /** The time range of the history: the selected one, or the shortest one that contains data of a silent node. */
  function range() {
    const age = find()?.age ?? 0;
    return app.params.get("range") ?? (RANGES.find(([, , reach]) => age < reach / 2) ?? RANGES.at(-1))[0];
  }

  async function askHistory() {
    const windows = app.state.overview?.windows ?? ["5m", "10m", "15m"];
    const from = range(), step = RANGES.find(([each]) => each === from)?.[3] ?? "1m";
    const query = `host=${encodeURIComponent(name)}&type=CPU&type=Memory&operator=AVG&operator=STD&from=${encodeURIComponent(from)}&step=${step}`;
    try {
      const asked = await Promise.all(windows.map((window) => ask(`api/v1/history?${query}&window=${window}`)));
      await pictures.show(asked.map(({ body }) => body), windows);
      if (absent) update(); // a node that left the fleet, with stored history
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      nothingStored = error.code === "unknown_host";
      if (error.status && !absent) charts.replaceChildren(el("p", {}, error.message), el("p.quiet", {}, error.hint));
    }
  }

  async function askFindings() {
    const { body } = await ask("api/v1/findings");
    const mine = body.findings.filter((each) => each.node === name);
    return mine.length ? table("Findings of this node", [["Kind"], ["Metric", "code"], ["Reason", "long"], ["Remedy"], ["Last seen", "name"]],
      mine.map((each) => [each.kind, each.metric || "all", each.reason, each.remedy, `${seconds(Math.max(0, body.timestamp - each.last_seen))} ago`]))
      : el("p.quiet", {}, "no ", term("finding", "findings"));
  }

  async function askPods() {
    const { body } = await ask(`api/v1/pods?host=${encodeURIComponent(name)}`);
    podRows = body.pod.map((pod, i) => ({ namespace: body.namespace[i], name: pod, cores: body.cores[i], bytes: body.bytes[i] }))
      .sort((a, b) => (b.cores ?? -1) - (a.cores ?? -1) || `${a.namespace}/${a.name}`.localeCompare(`${b.namespace}/${b.name}`));
    showPods();
  }

  function showPods() {
    const capacity = ofScheduler?.capacity ?? {};
    const rows = all ? podRows : podRows.slice(0, FIRST_PODS);
    const withShare = (value, write, of) => el("span", {}, write(value), el("small", {}, shareOf(value, of)));
    const cpu = (value) => withShare(value, (each) => (each == null ? NONE : `${cores(each)} cores`), capacity.cpu / 1000);
    const cells = rows.map((pod) => [podLink(pod.namespace, pod.name), cpu(pod.cores), withShare(pod.bytes, bytes, capacity.memory)]);
    const outside = outsideOf(podRows, find(), capacity);
    if (outside) cells.unshift([term("outside"), cpu(outside.cores), NONE]);
    const rest = podRows.length - rows.length;
    renew(pods, table("Pods of this node", [["Pod", "long"], ["CPU", "number"], ["Memory", "number"]], cells),
      rest > 0 ? el("button.plain", { type: "button", onclick: () => { all = true; showPods(); } }, `Show ${count(rest, "more pod")}`) : "");
  }

  async function askScores(profiles) {
    const made = await Promise.all(profiles.map(async (profile) => {
      const body = await post(`scheduler/${encodeURIComponent(profile)}/score?limit=1&node=${encodeURIComponent(name)}`, pasted(), "application/yaml");
      return { profile, node: body.nodes[0], time: body.time };
    }));
    const open = new Set([...scores.querySelectorAll("details[open]")].map((each) => each.dataset.profile));
    return el("div.stack", {}, el("p.quiet", {}, "For the pod in the ", el("a", { href: "#/score" }, "score explorer"), ", by each ", term("profile"), "."),
      made.map(({ profile, node, time }) => {
        if (!node) return el("p", {}, `${profile}: the scheduling plug-ins do not know this node.`);
        const details = el("details", { open: open.has(profile) }, el("summary", {}, el("b", {}, `${profile}: ${scoreOf(node)}`), ` ${reasonOf(node)}`), explanation(node, time));
        details.dataset.profile = profile;
        return details;
      }));
  }

  async function askKnown(profile) {
    const { body } = await ask(`scheduler/${encodeURIComponent(profile)}/nodes/${encodeURIComponent(name)}`);
    ofScheduler = body.nodes[name];
    const open = known.querySelector("details")?.open ?? false;
    update();
    return el("details.card", { open }, el("summary", {}, "Labels and state in the scheduling plug-ins"), stateOf(ofScheduler));
  }

  return {
    title: name, root, update,
    async refresh() {
      const work = absent && nothingStored ? [] : [askHistory()];
      if (!absent) work.push(into(findings, askFindings), into(pods, askPods, podsMissing));
      if (!absent && app.state.overview?.scheduler) {
        const { body: { profiles } } = await ask("scheduler/plugins");
        const first = profiles.includes("default") ? "default" : profiles[0];
        work.push(into(scores, () => askScores(profiles)), into(known, () => askKnown(first)));
      } else if (!absent && app.state.overview) {
        if (!scores.firstChild) scores.replaceChildren(el("p.quiet", {}, "See below."));
        if (!known.firstChild) known.replaceChildren(withoutScheduler());
      }
      await Promise.all(work);
    },
    end() {
      pictures.end();
    },
  };
}

/** Renders the result of `make` into `place` if `about` has changed, so that an open definition stays open otherwise. */
function changed(place, about, make) {
  const now = JSON.stringify(about);
  if (place.dataset.about === now) return;
  place.dataset.about = now;
  renew(place, ...make());
}

/** Renders the result of `make` into `place`. An API error is shown there and does not affect other parts of the view. */
async function into(place, make, failed = (error) => [el("p", {}, error.message), el("p.quiet", {}, error.hint)]) {
  try {
    const made = await make();
    if (made) renew(place, made);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status) renew(place, ...failed(error));
  }
}

// --- heading -----------------------------------------------------------------------------------------------------

/** Links to the fleet and to the neighbours of the node, in the order of the fleet view as it was left. */
function wayOf(app, name) {
  const left = app.fleet ?? new URLSearchParams();
  const metric = Object.hasOwn(METRICS, left.get("metric")) ? left.get("metric") : "cpu", sort = left.get("sort") ?? "load";
  const some = chosen(app.state.nodes, { metric, sort, state: left.get("state") ?? "all", text: left.get("text") ?? "" });
  const order = some.some((each) => each.name === name) ? some : chosen(app.state.nodes, { metric, sort });
  const at = order.findIndex((each) => each.name === name), query = left.toString();
  const beside = (node, label, rel) => (node ? el("a", { href: `#/node/${encodeURIComponent(node.name)}`, rel, title: node.name }, label) : el("span.quiet", { "aria-hidden": "true" }, label));
  return [el("a", { href: `#/fleet${query ? `?${query}` : ""}` }, "← Fleet"), ...(at < 0 ? [] : [
    el("span.quiet", {}, `${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")} ${ORDERS[sort] ?? ORDERS.load}`),
    beside(order[at - 1], "‹ previous", "prev"), beside(order[at + 1], "next ›", "next"),
  ])];
}

/** The state of a node in one or two words: of its samples, or of its load if the samples are recent. */
function badge(node) {
  if (!node) return [];
  const highest = ["cpu", "memory"].filter((each) => node[each]).sort((a, b) => node[b].mean - node[a].mean)[0];
  const load = highest ? node[highest].mean : null;
  const [key, kind] = node.state !== STATES.fresh ? [node.state, node.state === STATES.silent ? "bad" : "warn"]
    : load >= HOT_PERCENT ? ["hot", "bad"] : load >= BUSY_PERCENT ? ["busy", "warn"] : [null, "good"];
  const words = node.state !== STATES.fresh ? inWords(node) : key ? `${key}: ${METRICS[highest]} at ${percent(load)}` : load == null ? "load unknown" : "normal load";
  return [el(`span.badge.${kind}`, {}, key ? term(key, words) : words)];
}

function inWords(node) {
  const age = seconds(node.age ?? 0);
  return {
    [STATES.stale]: `stale: newest sample ${age} old`, [STATES.lost]: `lost ${age} ago`,
    [STATES.silent]: `silent for ${age}${node.last ? `, since ${moment(node.last.sampled)}` : ""}`, [STATES.unheard]: "never heard of",
  }[node.state] ?? LABELS[node.state];
}

function factsOf(node, known) {
  const labels = known?.labels ?? {}, capacity = known?.capacity ?? {};
  const size = [capacity.cpu && `${plain(capacity.cpu / 1000)} cores`, capacity.memory && bytes(capacity.memory)].filter(Boolean).join(", ");
  const found = [...LABEL_KEYS.map(([key, prefix]) => labels[key] && prefix + labels[key]), size].filter(Boolean);
  const last = node?.last && [node.last.cpu == null ? "" : `CPU ${percent(node.last.cpu)}`, node.last.memory == null ? "" : `Memory ${percent(node.last.memory)}`].filter(Boolean).join(", ");
  return [[...found, last ? `last load ${last}` : "", node?.state === STATES.silent ? "not listed by the API" : ""].filter(Boolean).join(" · ")];
}

/** The message for a node that is neither in the fleet nor in the store. */
function nowhere(app, name) {
  const stem = name.slice(0, Math.max(3, name.search(/[-.\d]/)));
  return el("section.card.stack", {}, el("p", {}, `No node ${name} in the fleet, and no stored history of it.`),
    el("p.quiet", {}, "Check the spelling: names are case-sensitive, and are those of the Kubernetes nodes if the cluster is known. A removed node disappears after 24 h."),
    el("p", {}, el("a", { href: `#/fleet?as=table&text=${encodeURIComponent(stem)}` }, `Nodes with “${stem}” in their name`), " · ",
      el("a", { href: "#/fleet" }, `all ${count(app.state.nodes.length, "node")}`)));
}

// --- load --------------------------------------------------------------------------------------------------------

const RESOURCES = [["cpu", "CPU", (value) => `${cores(value / 1000)} cores`], ["memory", "Memory", bytes]];

function barsOf(node, known, overview) {
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
function outsideOf(pods, node, capacity) {
  if (!node?.cpu || !capacity.cpu || pods.some((pod) => pod.cores == null)) return null;
  const left = (node.cpu.mean * capacity.cpu) / 100_000 - pods.reduce((sum, pod) => sum + pod.cores, 0);
  return (100_000 * left) / capacity.cpu >= OUTSIDE_PERCENT ? { cores: left } : null;
}

function shareOf(value, capacity) {
  if (value == null || !capacity) return "";
  const share = (100 * value) / capacity;
  return share > 0 && share < 1 ? "<1 %" : percent(share, 0);
}

function podsMissing(error) {
  if (error.code !== "no_pods") return [el("p", {}, error.message), el("p.quiet", {}, error.hint)];
  return [el("p", {}, "The pods of the node by CPU usage, with their share of the node, are shown here once pod usage is known."),
    el("p.quiet", {}, error.hint)];
}

// --- scheduling plug-ins -----------------------------------------------------------------------------------------

function withoutScheduler() {
  return missing("Labels, zone, requested, allocatable, limits and scores of the node come from the Kubernetes API, through the scheduling plug-ins. None are configured.",
    SCHEDULER, { hint: "In a cluster, the service account is used; elsewhere, set kubernetes.kubeconfig.", page: "concepts/scheduling.md" });
}

function stateOf(node) {
  const amounts = (each) => Object.entries(each).map(([resource, value]) => amountOf(resource, value)).join(", ") || "none";
  const rows = [...Object.entries(node.labels ?? {}).sort(([a], [b]) => a.localeCompare(b)),
    ...["capacity", "allocatable", "requested", "limits"].map((key) => [key, amounts(node[key])]),
    ["pods", String(node.pods)], ["recently assigned", count(node.recent.length, "pod")], ["reserved for", node.reserved.join(", ") || "none"]];
  return el("dl.steps", {}, rows.map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]).flat());
}

function amountOf(resource, value) {
  if (resource === "cpu") return `${value / 1000} cores`;
  if (resource === "memory" || resource === "ephemeral-storage") return `${bytes(value)} of ${resource}`;
  return `${value} ${resource}`;
}
