// The view of all nodes: problems first, then the nodes as cells or as a table, and their distribution.

import { ApiError, ask } from "../common/api.js";
import { CanvasList } from "./canvas-list.js";
import { Cells, paintCell } from "./cells.js";
import { choice, el, field, notice, numbers, renew, select, svg } from "../common/dom.js";
import { groupOf, grouped, groupings, meanOf } from "./groups.js";
import { NodeTable } from "./table.js";
import { NOTABLE, STRONG, signed, trendsOf } from "./trend.js";
import { overTime } from "./over-time.js";
import { NONE, count, moment, percent, seconds } from "../common/format.js";
import { BOUNDS, LABELS, METRICS, STATES, boundsOf, chosen, histogram, totals } from "../load.js";
import { problemsPanel } from "../problems/problems.js";
import { term } from "../terms/definitions.js";
import { colour, heat, onThemeChange } from "../common/theme.js";

const DIGIT = 7.7; // width of a digit in the chart, in pixels
const SORTS = [["load", "load"], ["rising", "rising fastest"], ["deviation", "deviation"], ["age", "longest silent"], ["name", "name"]];
const UNLISTED = "The nodes of the cluster are unknown here, so a removed node is shown as silent for one day.";
const SHOWS = [["all", "all nodes"], ...Object.entries(LABELS)];

/** The lines that describe a node, for tooltips and screen readers. */
export function describe(node) {
  const line = (label, load) => load
    ? `${label} ${percent(load.mean)}${load.deviation == null ? "" : ` ± ${percent(load.deviation)}`} (${load.window})`
    : `${label} ${NONE}`;
  const age = seconds(node.age ?? 0);
  const state = {
    fresh: [], stale: [`stale: its last sample is ${age} old`], silent: node.last ? [silence(node), lastLoad(node)] : [],
    unheard: ["never reported: in the cluster, but not in the source"],
    quarantined: ["quarantined: its metrics are implausible"], lost: [`lost in a partial outage, ${age} ago`],
  }[node.state];
  const trend = Object.entries(METRICS).filter(([key]) => node.trend?.[key] != null)
    .map(([key, label]) => `${label} trend ${signed(node.trend[key])} points`);
  return [node.name, ...(node.group ? [node.group] : []), ...state, ...(node.cpu || node.memory ? [line("CPU", node.cpu), line("Memory", node.memory)] : []), ...trend,
    ...BOUNDS.filter(({ key }) => node[key]).map(({ key, label }) => `${label}: at most ${Math.ceil(node[key].mean)} % within ${node[key].window}`)];
}

/** The duration and start of a node's silence, as text. */
function silence(node) {
  return `silent for ${seconds(node.age)}, since ${moment(node.last.sampled)}`;
}

function lastLoad({ last }) {
  const known = [["CPU", last.cpu], ["Memory", last.memory]].filter(([, value]) => value != null);
  return known.length ? `last ${known.map(([name, value]) => `${name} ${percent(value)}`).join(", ")}` : "last load unknown";
}

export function openNode(node) {
  location.hash = `#/node/${encodeURIComponent(node.name)}`;
}

export function fleetView(app) {
  const cells = new Cells();
  const list = new CanvasList({ label: "Nodes as cells", painter: cells, describe, open: openNode });
  const table = new NodeTable(app);
  const problems = el("div"), marked = el("div.marked");
  const summary = el("div.summary");
  const spread = el("div.card"), past = el("div");
  const legend = el("div.legend");
  const place = el("div");
  const tools = el("div.tools");
  const fold = el("button.fold", { "aria-expanded": "false", onclick: () => fold.setAttribute("aria-expanded", String(fold.ariaExpanded !== "true")) },
    "Colour, window, groups, filter…");
  const ungrouped = el("p.quiet.ungrouped");
  const shownNodes = el("p.quiet", { role: "status" });
  const root = el("div.stack.fleet", {}, problems, summary,
    el("section.card", { "aria-label": "Nodes" }, fold, tools, marked, shownNodes, place, legend, ungrouped), el("div.columns.below", {}, past, spread));
  const forget = onThemeChange(() => update());
  let labels = null, trends = new Map(), bounds = new Map(), built = "", panel = "", trend = null, drawn = "";

  const get = (name, fallback) => app.params.get(name) ?? fallback;

  /** The metrics that nodes can be coloured by; forecasts only if a node has one. */
  function metrics() {
    const known = BOUNDS.filter(({ key }) => [...bounds.values()].some((each) => each[key]));
    return { ...METRICS, ...Object.fromEntries(known.map(({ key, label }) => [key, label])) };
  }

  /** The window of a metric, or the horizon of a forecast, like "15m". */
  function overOf(nodes, metric) {
    return metric in METRICS ? app.window : nodes.find((node) => node[metric])?.[metric].window ?? "";
  }

  /** The windows that trends compare, as text. */
  function compared() {
    const { windows = [], default_window: longest } = app.state.overview ?? {};
    return `${windows[0]} less ${longest}`;
  }

  function wants() {
    const metric = get("metric", "cpu");
    return {
      metric: Object.hasOwn(metrics(), metric) ? metric : "cpu", sort: get("sort", "load"), state: get("state", "all"), text: get("text", ""),
      as: get("as", "cells"), group: get("group", ""), highlight: names(app.params.get("highlight")),
    };
  }

  function build(options) {
    const now = wants();
    const filter = field("Name contains", {
      type: "search", value: now.text, oninput: (event) => app.set({ text: event.target.value, page: null }),
    });
    tools.replaceChildren(
      choice("Colour by", Object.entries(metrics()), now.metric, (metric) => app.set({ metric })),
      choice("Window", (app.state.overview?.windows ?? ["5m", "10m", "15m"]).map((each) => [each, each]), app.window,
        (window) => app.set({ window })),
      choice("Show as", [["cells", "cells"], ["table", "table"]], now.as, (as) => app.set({ as })),
      ...(options.length ? [select("Group by", options, now.group, (group) => app.set({ group }))] : []),
      select("Sort by", SORTS, now.sort, (sort) => app.set({ sort, order: null, page: null })),
      select("Show", SHOWS, now.state, (state) => app.set({ state, page: null })),
      filter,
    );
  }

  function update() {
    const wanted = wants();
    const { nodes } = app.state;
    const options = groupings(labels, nodes);
    const tooled = JSON.stringify([app.state.overview?.windows, options, metrics()]);
    if (built !== tooled && !tools.contains(document.activeElement)) {
      built = tooled;
      build(options);
    }
    const group = groupOf(wanted.group, labels);
    for (const node of nodes) {
      node.trend = trends.get(node.name);
      for (const { key } of BOUNDS) node[key] = bounds.get(node.name)?.[key] ?? null;
      node.group = group?.(node.name);
    }
    const nothing = app.nothing();
    const gone = app.state.silent?.listed === false && nodes.some((node) => node.state === STATES.silent);
    showProblems();
    summary.replaceChildren(totalsOf(nodes, wanted.metric, overOf(nodes, wanted.metric)), ...(gone ? [el("p.quiet", {}, UNLISTED)] : []));
    summary.hidden = spread.hidden = Boolean(nothing); // before its width is measured
    past.hidden = Boolean(nothing);
    showPast();
    spread.replaceChildren(el("h2", {}, `Distribution of ${nameOf(wanted.metric)} (${overOf(nodes, wanted.metric)})`), distribution(nodes, wanted.metric, spread.clientWidth));
    const some = picked(nodes, wanted);
    shownNodes.textContent = some.length === nodes.length ? "" : `${some.length} of ${count(nodes.length, "node")}`;
    showMarked(wanted.highlight, nodes);
    if (nothing) place.replaceChildren(nothing);
    else if (wanted.as === "table") showTable(some, wanted, group, options);
    else showCells(some, wanted, group);
    showKey(wanted.metric, nodes);
    legend.hidden = Boolean(nothing) || wanted.as === "table";
    tools.hidden = fold.hidden = Boolean(nothing);
    ungrouped.hidden = Boolean(nothing) || !labels?.reason;
    ungrouped.textContent = labels?.reason ? `No groups by zone, pool or type: ${labels.reason}.` : "";
  }

  /** The legend, made again only if it changes, so that an open definition stays open. */
  function showKey(metric, nodes) {
    const least = cells.text ? NOTABLE : STRONG;
    const now = JSON.stringify([metric, [...new Set(nodes.map((node) => node.state))], least, nodes.some((node) => node.trend?.[metric] != null), colour("ink"), compared()]);
    if (legend.dataset.about === now) return;
    legend.dataset.about = now;
    legend.replaceChildren(...key(metric, nodes, least, compared()));
  }

  /** The load over time, drawn again only if it or the width changes, so that the values at the pointer stay. */
  function showPast() {
    if (past.hidden || !trend) return;
    const now = `${trend.end} ${trend.time.length} ${past.clientWidth}`;
    if (now === drawn) return;
    drawn = now;
    past.replaceChildren(overTime(trend, past.clientWidth));
  }

  async function askPast() {
    try {
      trend = (await ask("api/v1/trend")).body;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (!trend && error.status) past.replaceChildren(notice(`No load of the fleet over time: ${error.message}`, error.hint));
      return;
    }
    past.hidden = Boolean(app.nothing());
    showPast();
  }

  function showProblems() {
    const now = JSON.stringify(app.state.problems?.problems);
    if (now === panel) return;
    panel = now;
    const made = problemsPanel(app.state.problems);
    renew(problems, ...(made ? [made] : []));
  }

  function showCells(some, wanted, group) {
    const groups = group && grouped(some, group).map((each) => ({ ...each, note: noteOf(each.nodes, wanted.metric) }));
    Object.assign(cells, { metric: wanted.metric, groups, highlight: wanted.highlight });
    if (place.firstChild !== list.root) place.replaceChildren(list.root);
    const order = groups ? groups.flatMap((each) => each.nodes) : some;
    app.listed = order.map((node) => node.name);
    list.set(order);
  }

  function showTable(some, wanted, group, options) {
    if (place.firstChild !== table.root) place.replaceChildren(table.root);
    const order = { load: null, name: "name", rising: `-${wanted.metric}-trend`, deviation: `-${wanted.metric}-deviation`, age: "-state" }[wanted.sort];
    if (order && !app.params.has("order")) app.params.set("order", order);
    const shown = wanted.highlight ? some.filter((node) => wanted.highlight.has(node.name)) : some;
    table.set(shown, {
      words, group, groupHead: options.find(([value]) => value === wanted.group)?.[1] ?? "", window: app.window, metrics: metrics(),
      metric: wanted.metric, labels, compared: compared(),
    });
  }

  function showMarked(highlight, nodes) {
    marked.hidden = !highlight;
    if (!highlight) return;
    const found = nodes.filter((node) => highlight.has(node.name)).length;
    marked.replaceChildren(el("span", { role: "status" }, `${count(found, "node")} highlighted${found < highlight.size ? `, ${highlight.size - found} not found` : ""}`),
      el("button.plain", { onclick: () => app.set({ highlight: null }) }, "clear"));
  }

  async function askTrends() {
    const { windows = [], default_window: longest } = app.state.overview ?? {};
    const [shortest] = windows;
    if (!longest || shortest === longest || app.state.columnsError) return;
    const [short, long] = await Promise.all([shortest, longest].map((window) =>
      ask(`api/v1/columns?type=CPU&type=Memory&operator=AVG&window=${encodeURIComponent(window)}`)));
    if (short.changed || long.changed || !trends.size) trends = trendsOf(short.body, long.body, { shortest, longest });
  }

  /** Forecasts over the default horizon; without any, the nodes have none. */
  async function askBounds() {
    if (!app.state.overview?.forecasts?.horizons.length || app.state.columnsError) return;
    const asked = await ask("api/v1/columns?type=CPU&type=Memory&operator=FORECAST");
    if (asked.changed || !bounds.size) bounds = boundsOf(asked.body);
  }

  return {
    title: "Fleet", root, update,
    async refresh() {
      const [asked] = await Promise.all([ask("api/v1/labels"), askTrends().catch(ignored), askBounds().catch(ignored)]);
      labels = asked.body;
      update();
      await askPast(); // the first one reads the whole day from the store
    },
    end() {
      list.end();
      forget();
    },
  };
}

/** Without data of both windows there are no trends; the list of nodes shows the reason. */
function ignored(error) {
  if (!(error instanceof ApiError)) throw error;
}

function names(text) {
  return text ? new Set(text.split(",")) : null;
}

function picked(nodes, wanted) {
  const some = chosen(nodes, wanted);
  if (wanted.sort !== "rising") return some;
  const rise = (node) => node.trend?.[wanted.metric] ?? -Infinity;
  return some.sort((a, b) => rise(b) - rise(a) || 0);
}

function noteOf(nodes, metric) {
  const mean = meanOf(nodes, metric);
  return `${count(nodes.length, "node")}${mean == null ? "" : `, mean ${percent(mean, 0)}`}`;
}


/** The name of a metric or forecast. */
function nameOf(metric) {
  return METRICS[metric] ?? BOUNDS.find(({ key }) => key === metric).label;
}

function totalsOf(nodes, metric, over) {
  const { states, mean, median, p90, highest } = totals(nodes, metric);
  const other = Object.entries(states).filter(([state, many]) => many && state !== STATES.fresh);
  const name = `${nameOf(metric)} (${over})`;
  const links = other.flatMap(([state, many], i) => [i ? ", " : "", el("a", { href: `#/fleet?as=table&state=${state}` }, `${many} ${LABELS[state]}`)]);
  const table = (order, value) => (value == null ? NONE : el("a", { href: `#/fleet?as=table&metric=${metric}&order=${order}` }, percent(value)));
  return numbers([
    ["Nodes", [el("a", { href: "#/fleet?as=table&sort=name" }, nodes.length.toLocaleString("en")), links.length ? links : "all fresh"]],
    [`${name}, highest`, highest ? [percent(highest[metric].mean), el("a", { href: `#/node/${encodeURIComponent(highest.name)}` }, highest.name)] : NONE],
    [`${name}, mean of nodes`, table(`-${metric}`, mean)],
    [`${name}, median`, table(`-${metric}`, median)],
    [`${name}, 90th percentile`, table(`-${metric}`, p90)],
  ]);
}

/** The histogram of a metric. It has the width of the card (`room` pixels), so that its text is not scaled. */
function distribution(nodes, metric, room) {
  const bins = histogram(nodes, metric);
  const most = Math.max(1, ...bins);
  const width = Math.max(260, room - 34), height = 100, bar = width / bins.length;
  const counted = withRoom(bins, bar);
  const parts = bins.map((many, i) => {
    const tall = many ? Math.max(2, (many / most) * (height - 34)) : 0;
    const rectangle = svg("rect", {
      x: i * bar + 1, y: height - 16 - tall, width: bar - 2, height: tall, rx: 2, fill: heat(i * 5 + 2.5).fill, stroke: "currentColor",
      "stroke-opacity": 0.25,
    });
    const half = (String(many).length * DIGIT) / 2, middle = Math.min(width - half, Math.max(half, i * bar + bar / 2));
    const label = counted.has(i) ? [text(middle, height - 20 - tall, String(many))] : [];
    return [rectangle, ...label];
  }).flat();
  const axis = [0, 25, 50, 75, 100].map((value) => text(Math.min(width - 21, Math.max(12, (value / 100) * width)), height - 3, `${value} %`));
  const said = bins.map((many, i) => (many ? `${many} from ${i * 5} to ${i * 5 + 5} %` : "")).filter(Boolean).join(", ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Nodes by ${nameOf(metric)}: ${said}`, width: "100%" },
    ...parts, ...axis);
}

/** The bins with a count label. Labels must overlap neither each other nor higher bars beside them, so on small screens
 *  only the largest bins get one. */
function withRoom(bins, bar) {
  const half = (i) => (String(bins[i]).length * DIGIT) / 2;
  const found = [];
  const isFree = (i) => half(i) <= bar / 2 || [i - 1, i + 1].every((each) => (bins[each] ?? 0) <= bins[i]);
  for (const i of [...bins.keys()].filter((each) => bins[each] && isFree(each)).sort((a, b) => bins[b] - bins[a] || a - b)) {
    if (found.every((other) => Math.abs(other - i) * bar >= half(other) + half(i))) found.push(i);
  }
  return new Set(found);
}

function text(x, y, content) {
  const made = svg("text", { x, y, "text-anchor": "middle" });
  made.textContent = content;
  return made;
}

/** The state of a node that is not fresh, in words. */
function words(node) {
  if (node.state === STATES.fresh) return "";
  if (node.state === STATES.silent) return `${silence(node)}; ${lastLoad(node)}`;
  return node.age == null ? LABELS[node.state] : `${LABELS[node.state]} for ${seconds(node.age)}`;
}

/** The legend: loads, the states that occur, and the mark of trends of at least `least` points if there are any. */
function key(metric, nodes, least, compared) {
  const states = new Set(nodes.map((node) => node.state));
  const sample = (node, label) => {
    const canvas = el("canvas", { width: 36, height: 36, "aria-hidden": "true" });
    canvas.style.width = canvas.style.height = "18px";
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    paintCell(context, { [metric]: null, ...node }, metric, { x: 0, y: 0, width: 18, height: 18 });
    return el("span", {}, canvas, label);
  };
  const load = (mean) => ({ [metric]: { mean } });
  return [
    ...[5, 35, 60, 80, 95].map((mean) => sample({ ...load(mean), state: STATES.fresh }, `${mean} %`)),
    ...(states.has(STATES.stale) ? [sample({ ...load(50), state: STATES.stale }, term("stale"))] : []),
    ...[STATES.silent, STATES.unheard, STATES.quarantined, STATES.lost].filter((state) => states.has(state))
      .map((state) => sample({ state }, term(state, LABELS[state]))),
    ...(metric in METRICS ? [] : [el("span", {}, "the colour is the ", term("bound"), " of the ", term("forecast"))]),
    ...(nodes.some((node) => node.trend?.[metric] != null) ? [el("span", {}, `▲ ▼ trend, ${compared}: ${least} points or more`)] : []),
  ];
}
