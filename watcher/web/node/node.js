// The view of one node: its load with requests and limits, the pods that make it, history, findings and scores.

import { ApiError, ask, post } from "../common/api.js";
import { choice, el, renew, table } from "../common/dom.js";
import { NONE, bytes, cores, count, percent, plain, seconds } from "../common/format.js";
import { STATES, chosen } from "../load.js";
import { pasted } from "../score/manifest.js";
import { HistoryCharts } from "./history.js";
import { barsOf, condition, outsideOf, shareOf } from "./load.js";
import { podLink } from "../placements/podlink.js";
import { badge, cure } from "../problems/problems.js";
import { missing, term } from "../terms/definitions.js";
import { explanation, reasonOf, scoreOf } from "../score/why.js";

const RANGES = [["-1h", "1 h", 3600, "1m"], ["-6h", "6 h", 21600, "2m"], ["-24h", "24 h", 86400, "5m"]];
const FIRST_PODS = matchMedia("(max-width: 45rem)").matches ? 6 : 8;
const LABEL_KEYS = [["node.kubernetes.io/instance-type", ""], ["topology.kubernetes.io/zone", "zone "]];
const SCHEDULER = `[scheduler.default]
plugins = [{ name = "TargetLoadPacking" }]`;

const FORECAST = `[forecast]
enabled = true
horizon = "6h"`;

export function nodeView(app) {
  const name = app.argument;
  const heading = el("h2.title"), facts = el("p.quiet"), way = el("nav.way", { "aria-label": "Nodes" });
  const problems = el("div", { hidden: true });
  const bars = el("div"), pods = el("div"), findings = el("div"), scores = el("div"), known = el("div"), charts = el("div.columns"), more = el("div.columns");
  const ranges = el("div"), unknown = el("div"), ahead = el("div"), terms = el("p.quiet"), podsOver = el("small.quiet");
  const deviations = el("details", { open: matchMedia("(min-width: 40rem)").matches }, el("summary", {}, "Deviation"), more);
  const sections = [
    el("section.card", {}, el("h2", {}, "Load"), bars), el("section.card", {}, el("h2", {}, "Pods that make the load", podsOver), pods),
    el("section.card", {}, el("h2", {}, "History of the ", term("window", "windows")), el("div.tools", {}, ranges, terms), charts, ahead, deviations),
    el("section.card", {}, el("h2", {}, "Scores"), scores), el("section.card", {}, el("h2", {}, "Findings"), findings),
    known,
  ];
  const root = el("div.stack.node", {}, way, el("div", {}, heading, facts), problems, unknown, ...sections);
  const pictures = new HistoryCharts(charts, more);
  let lookedUp = ""; // why there is no stored history of a node that is not in the fleet
  let built = "", ofScheduler = null, podRows = null, podsUnknown = "", all = false, absent = false, labels = {};

  const find = () => app.state.nodes.find((each) => each.name === name);

  function update() {
    const node = find();
    showWay(way, app, name);
    changed(heading, [node], () => [`${name} `, ...condition(node)]);
    facts.replaceChildren(...factsOf(node, ofScheduler, labels));
    changed(bars, [node, ofScheduler?.capacity, ofScheduler?.allocatable, ofScheduler?.requested, ofScheduler?.limits, app.state.overview?.scheduler],
      () => (node ? barsOf(node, ofScheduler, app.state.overview) : [el("p.quiet", {}, "The current load is unknown.")]));
    if (podRows) showPods();
    absent = !node && !app.nothing() && app.state.overview != null;
    if (absent && !pictures.charts.length) changed(unknown, [app.state.nodes.length, lookedUp], () => [nowhere(app, name, lookedUp, lookUp)]);
    else {
      delete unknown.dataset.about;
      unknown.replaceChildren(...(node || !app.nothing() ? [] : [app.nothing()]));
    }
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

  /** Looks for stored history of a node that is not in the fleet, when the user asks for it. */
  async function lookUp() {
    await askHistory();
    update();
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
      const [forecasts, pressure, ...asked] = await Promise.all([askForecasts(), askPressure(), ...windows.map((window) => ask(`api/v1/history?${query}&window=${window}`))]);
      await pictures.show(asked.map(({ body }) => body), windows, forecasts, pressure);
      if (absent) update(); // a node that left the fleet, with stored history
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status && absent) lookedUp = error.code === "unknown_host" ? `No history of ${name} is stored.` : `${error.message}. ${error.hint}`;
      if (error.status && !absent) charts.replaceChildren(el("p", {}, error.message), el("p.quiet", {}, error.hint));
    }
  }

  /** The metrics of the node, among them its pressure where it is fetched; asking for the type alone would be refused elsewhere. */
  async function askPressure() {
    if (![STATES.fresh, STATES.stale].includes(find()?.state)) return []; // others are not served
    try {
      const { body } = await ask(`watcher?host=${encodeURIComponent(name)}&operator=AVG`);
      return body.data.NodeMetricsMap[name]?.metrics ?? [];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return [];
    }
  }

  /** The forecasts of the node over the default horizon; without any, the reason is shown. */
  async function askForecasts() {
    const offer = app.state.overview?.forecasts;
    if (!offer || absent) return [];
    if (!offer.horizons.length) {
      changed(ahead, ["disabled"], () => [withoutForecasts()]);
      return [];
    }
    try {
      const { body } = await ask(`api/v1/forecasts?host=${encodeURIComponent(name)}`);
      changed(ahead, [], () => []);
      changed(terms, [], () => [term("forecast"), ", ", term("bound")]);
      return body.forecasts;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return [];
    }
  }

  async function askProblems() {
    const { body } = await ask("api/v1/problems");
    const mine = body.problems.filter((each) => each.nodes.includes(name));
    problems.hidden = !mine.length;
    changed(problems, mine, () => [el("section.card.problems", { "aria-label": "Problems" }, el("ul", {}, mine.map((each) =>
      el("li", {}, badge(each.severity), el("div", {}, el("p", {}, each.text), cure(each))))))]);
  }

  async function askLabels() {
    const { body } = await ask("api/v1/labels");
    const at = body.nodes.indexOf(name);
    labels = at < 0 ? {} : Object.fromEntries(body.labels.filter((each) => each.nodes[at] != null).map((each) => [each.name, each.values[each.nodes[at]]]));
    facts.replaceChildren(...factsOf(find(), ofScheduler, labels));
  }

  async function askFindings() {
    const { body } = await ask("api/v1/findings");
    const mine = body.findings.filter((each) => each.node === name);
    return mine.length ? table("Findings of this node", [["Kind"], ["Metrics", "code"], ["Reason", "long"], ["Remedy"], ["Last seen", "name"]],
      grouped(mine).map(([newest, metrics]) => [newest.kind.replaceAll("_", " "), metrics, newest.reason, newest.remedy.replaceAll("_", " "), `${seconds(Math.max(0, body.timestamp - newest.last_seen))} ago`]))
      : el("p.quiet", {}, "no ", term("finding", "findings"));
  }

  async function askPods() {
    if (!app.state.overview) return;
    const { reason, known } = app.state.overview.pods;
    if (!known) throw new ApiError(404, "no_pods", "", reason || "It is collected at the next refresh."); // without a request that fails
    const { body } = await ask(`api/v1/pods?host=${encodeURIComponent(name)}&missing=empty`);
    podsUnknown = body.unknown?.[name] ?? "";
    const mean = body.averages.find((each) => each.window === app.window && each.cores.every((value) => value != null) && each.bytes.every((value) => value != null));
    const from = mean ?? body;
    podsOver.textContent = mean ? ` · mean of ${mean.window}` : " · newest reading";
    const waits = from.pressure ?? body.pressure;
    const pressureOf = (i) => (waits ? [["CPU", waits.cpu[i]], ["memory", waits.memory[i]], ["I/O", waits.io[i]]].filter(([, share]) => share != null) : null);
    podRows = body.pod.map((pod, i) => ({ namespace: body.namespace[i], name: pod, cores: from.cores[i], bytes: from.bytes[i], pressure: pressureOf(i) }))
      .sort((a, b) => (b.cores ?? -1) - (a.cores ?? -1) || `${a.namespace}/${a.name}`.localeCompare(`${b.namespace}/${b.name}`));
    showPods();
  }

  function showPods() {
    if (!podRows.length) {
      podsOver.textContent = "";
      changed(pods, [podsUnknown], () => [el("p.quiet", {}, podsUnknown ? `Pod usage of this node is unknown: ${podsUnknown}.` : "No pods with usage run on this node.")]);
      return;
    }
    const capacity = ofScheduler?.capacity ?? {};
    const rows = all ? podRows : podRows.slice(0, FIRST_PODS);
    const withShare = (value, write, of) => el("span", {}, write(value), el("small", {}, shareOf(value, of)));
    const cpu = (value) => withShare(value, (each) => (each == null ? NONE : `${cores(each)} cores`), capacity.cpu / 1000);
    const waiting = podRows.some((pod) => pod.pressure?.length);
    const pressure = (shares) => shares.map(([resource, share]) => `${resource} ${Math.round(share)} %`).join(", ") || NONE;
    const cells = rows.map((pod) => [podLink(pod.namespace, pod.name), cpu(pod.cores), withShare(pod.bytes, bytes, capacity.memory), ...(waiting ? [pressure(pod.pressure)] : [])]);
    const outside = outsideOf(podRows, find(), capacity);
    if (outside) cells.unshift([term("outside"), cpu(outside.cores), NONE, ...(waiting ? [NONE] : [])]);
    const rest = podRows.length - rows.length;
    changed(pods, [cells.length, podRows, outside, capacity], () => [table("Pods of this node", [["Pod", "long"], ["CPU", "number"], ["Memory", "number"], ...(waiting ? [["Pressure", "long"]] : [])], cells),
      rest > 0 ? el("button.plain", { type: "button", onclick: () => { all = true; showPods(); } }, `Show ${count(rest, "more pod")}`) : ""]);
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
    const { body } = await ask(`scheduler/${encodeURIComponent(profile)}/nodes/${encodeURIComponent(name)}?missing=empty`);
    ofScheduler = body.nodes[name] ?? null;
    if (!ofScheduler) return el("section.card", {}, el("p.quiet", {}, "The Kubernetes API does not list this node, so its labels, requests and limits are unknown."));
    const open = known.querySelector("details")?.open ?? false;
    update();
    return el("details.card", { open }, el("summary", {}, "Labels and state in the scheduling plug-ins"), stateOf(ofScheduler, labels));
  }

  return {
    title: name, root, update, wants: "pods",
    async refresh() {
      const isServed = !absent && app.state.overview?.error?.code !== "no_metrics";
      const work = isServed || pictures.charts.length ? [askHistory()] : [];
      if (!absent) work.push(into(problems, askProblems, () => []), into(facts, askLabels, () => []), into(findings, askFindings), into(pods, askPods, podsMissing));
      if (!absent && app.state.overview?.scheduler) {
        const { body: { profiles } } = await ask("scheduler/plugins");
        const first = profiles.includes("default") ? "default" : profiles[0];
        work.push(into(scores, () => askScores(profiles)), into(known, () => askKnown(first)));
      } else if (!absent && app.state.overview) {
        if (!scores.firstChild) scores.replaceChildren(el("p.quiet", {}, "No profiles are configured. The ", el("a", { href: "#/score" }, "score explorer"), " ranks the nodes by a profile that you enter."));
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

/** Links to the fleet as it was left, and to the neighbours of the node in its order; by load if it was not shown.
 *  Rendered only if they change, because a click on a replaced link is lost. */
function showWay(place, app, name) {
  const listed = app.listed.includes(name), order = listed ? app.listed : chosen(app.state.nodes, {}).map((each) => each.name);
  const at = order.indexOf(name), query = app.fleet.toString(), about = [listed, order.length, at, order[at - 1], order[at + 1], query];
  const beside = (other, label, rel) => (other ? el("a", { href: `#/node/${encodeURIComponent(other)}`, rel, title: other }, label)
    : el("span.quiet", { "aria-hidden": "true" }, label));
  changed(place, about, () => [el("a", { href: `#/fleet${query ? `?${query}` : ""}` }, "← Fleet"), ...(at < 0 ? [] : [
    el("span.quiet", {}, `${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")} ${listed ? "in the order of the fleet" : "by CPU load"}`),
    beside(order[at - 1], "‹ previous", "prev"), beside(order[at + 1], "next ›", "next"),
  ])]);
}

function factsOf(node, known, labels) {
  const capacity = known?.capacity ?? {};
  const size = [capacity.cpu && `${plain(capacity.cpu / 1000)} cores`, capacity.memory && bytes(capacity.memory)].filter(Boolean).join(", ");
  const found = [...LABEL_KEYS.map(([key, prefix]) => labels[key] && prefix + labels[key]), size].filter(Boolean);
  const last = node?.last && [node.last.cpu == null ? "" : `CPU ${percent(node.last.cpu)}`, node.last.memory == null ? "" : `Memory ${percent(node.last.memory)}`].filter(Boolean).join(", ");
  return [[...found, last ? `last load ${last}` : "", node?.state === STATES.silent ? "not served to schedulers" : ""].filter(Boolean).join(" · ")];
}

/** The message for a node that is not in the fleet; `answer` says why there is no history of it, once looked up. */
function nowhere(app, name, answer, lookUp) {
  const stem = name.slice(0, Math.max(3, name.search(/[-.\d]/)));
  return el("section.card.stack", {}, el("p", {}, `No node ${name} in the fleet.`),
    el("p.quiet", {}, "Check the spelling: names are case-sensitive, and are those of the Kubernetes nodes if the cluster is known. The windows of a removed node are stored for store.retention, 24 h by default."),
    el("p", {}, el("a", { href: `#/fleet?as=table&text=${encodeURIComponent(stem)}` }, `Nodes with “${stem}” in their name`), " · ",
      el("a", { href: "#/fleet" }, `all ${count(app.state.nodes.length, "node")}`)),
    answer ? el("p.quiet", { role: "status" }, answer) : el("p", {}, el("button.plain", { type: "button", onclick: lookUp }, "Look for its stored history")));
}

/** [newest finding, metrics] for each kind with the same remedy: one cause usually affects all metrics of a node. */
function grouped(findings) {
  const groups = new Map();
  for (const each of findings) {
    const key = `${each.kind} ${each.remedy}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups.values()].map((some) => {
    const newest = some.reduce((a, b) => (b.last_seen > a.last_seen ? b : a)), [first] = some;
    return [newest, some.length > 1 ? `${some.length} metrics` : first.metric || "all"];
  });
}

function podsMissing(error) {
  if (error.code !== "no_pods") return [el("p", {}, error.message), el("p.quiet", {}, error.hint)];
  return [el("p", {}, "The pods of the node by CPU usage, with their share of the node, are shown here once pod usage is known."),
    el("p.quiet", {}, error.hint)];
}

function withoutForecasts() {
  return missing("The charts would show an upper bound of the load in the next hours, from the maxima of the last seven days, and how often such bounds held.",
    FORECAST, { page: "concepts/forecast.md" });
}

// --- scheduling plug-ins -----------------------------------------------------------------------------------------

function withoutScheduler() {
  return missing("Labels, zone, requested, allocatable, limits and scores of the node come from the Kubernetes API, through the scheduling plug-ins. None are configured.",
    SCHEDULER, { hint: "In a cluster, the service account is used; elsewhere, set kubernetes.kubeconfig.", page: "concepts/scheduling.md" });
}

function stateOf(node, labels) {
  const amounts = (each) => Object.entries(each).map(([resource, value]) => amountOf(resource, value)).join(", ") || "none";
  const rows = [...Object.entries(labels).sort(([a], [b]) => a.localeCompare(b)),
    ...["capacity", "allocatable", "requested", "limits"].map((key) => [key, amounts(node[key])]),
    ["pods", String(node.pods)], ["recently assigned", count(node.recent.length, "pod")], ["reserved for", node.reserved.join(", ") || "none"]];
  return el("dl.steps", {}, rows.map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]).flat());
}

function amountOf(resource, value) {
  if (resource === "cpu") return `${value / 1000} cores`;
  if (resource === "memory" || resource === "ephemeral-storage") return `${bytes(value)} of ${resource}`;
  return `${value} ${resource}`;
}
