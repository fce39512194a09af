// The view of all nodes, as cells or as a table.

import { CanvasList } from "./canvas-list.js";
import { Cells, paintCell } from "./cells.js";
import { choice, el, field, numbers, renew, select, svg, table } from "./dom.js";
import { NONE, count, moment, percent, seconds } from "./format.js";
import { LABELS, METRICS, STATES, chosen, histogram, totals } from "./load.js";
import { heat, onThemeChange } from "./theme.js";

const MOST_ROWS = 100;
const DIGIT = 7.7; // width of a digit in the chart, in pixels
const SORTS = [["load", "load"], ["deviation", "deviation"], ["age", "longest silent"], ["name", "name"]];
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
  return [node.name, ...state, ...(node.cpu || node.memory ? [line("CPU", node.cpu), line("Memory", node.memory)] : [])];
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
  const summary = el("div");
  const spread = el("div.card");
  const legend = el("div.legend");
  const place = el("div");
  const tools = el("div.tools");
  const shownNodes = el("p.quiet", { role: "status" });
  const root = el("div.stack", {}, summary, spread,
    el("section.card", { "aria-label": "Nodes" }, tools, shownNodes, place, legend));
  const forget = onThemeChange(() => update());

  const get = (name, fallback) => app.params.get(name) ?? fallback;

  function wants() {
    const metric = get("metric", "cpu");
    return {
      metric: Object.hasOwn(METRICS, metric) ? metric : "cpu", sort: get("sort", "load"), state: get("state", "all"), text: get("text", ""),
      as: get("as", "cells"),
    };
  }

  function build() {
    const now = wants();
    const filter = field("Name contains", {
      type: "search", value: now.text, oninput: (event) => app.set({ text: event.target.value }),
    });
    tools.replaceChildren(
      choice("Colour by", Object.entries(METRICS), now.metric, (metric) => app.set({ metric })),
      choice("Window", (app.state.overview?.windows ?? ["5m", "10m", "15m"]).map((each) => [each, each]), app.window,
        (window) => app.set({ window })),
      choice("Show as", [["cells", "cells"], ["table", "table"]], now.as, (as) => app.set({ as })),
      select("Sort by", SORTS, now.sort, (sort) => app.set({ sort })),
      select("Show", SHOWS, now.state, (state) => app.set({ state })),
      filter,
    );
  }

  let built = "";

  function update() {
    const wanted = wants();
    const windows = String(app.state.overview?.windows);
    if (built !== windows) {
      built = windows;
      build();
    }
    const { nodes } = app.state;
    const nothing = app.nothing();
    const gone = app.state.silent?.listed === false && nodes.some((node) => node.state === STATES.silent);
    summary.replaceChildren(totalsOf(nodes, wanted.metric), ...(gone ? [el("p.quiet", {}, UNLISTED)] : []));
    summary.hidden = spread.hidden = Boolean(nothing); // before its width is measured
    spread.replaceChildren(el("h2", {}, `Distribution of ${METRICS[wanted.metric]}, ${app.window}`), distribution(nodes, wanted.metric, spread.clientWidth));
    const some = chosen(nodes, wanted);
    shownNodes.textContent = some.length === nodes.length ? "" : `${some.length} of ${count(nodes.length, "node")}`;
    cells.metric = wanted.metric;
    if (nothing) place.replaceChildren(nothing);
    else if (wanted.as === "table") renew(place, rows(some));
    else if (place.firstChild !== list.root) place.replaceChildren(list.root);
    list.set(some);
    legend.replaceChildren(...key(wanted.metric));
    legend.hidden = wanted.as === "table";
  }

  return {
    title: "Fleet", root, update,
    end() {
      list.end();
      forget();
    },
  };
}

function totalsOf(nodes, metric) {
  const { states, mean, median, p90, highest } = totals(nodes, metric);
  const other = Object.entries(states).filter(([state, many]) => many && state !== STATES.fresh);
  const name = METRICS[metric];
  return numbers([
    ["Nodes", [nodes.length.toLocaleString("en"), other.map(([state, many]) => `${many} ${LABELS[state]}`).join(", ") || "all fresh"]],
    [`${name}, mean`, percent(mean)],
    [`${name}, median`, percent(median)],
    [`${name}, 90th percentile`, percent(p90)],
    [`${name}, highest`, [percent(highest?.[metric].mean), highest?.name]],
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
    const label = counted.has(i) ? [text(i * bar + bar / 2, height - 20 - tall, String(many))] : [];
    return [rectangle, ...label];
  }).flat();
  const axis = [0, 25, 50, 75, 100].map((value) => text(Math.min(width - 18, Math.max(12, (value / 100) * width)), height - 3, `${value} %`));
  const said = bins.map((many, i) => (many ? `${many} from ${i * 5} to ${i * 5 + 5} %` : "")).filter(Boolean).join(", ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Nodes by ${METRICS[metric]}: ${said}`, width: "100%" },
    ...parts, ...axis);
}

/** The bins with a count label. Labels must not overlap, so on small screens only the largest bins get one. */
function withRoom(bins, bar) {
  const half = (i) => (String(bins[i]).length * DIGIT) / 2;
  const found = [];
  for (const i of [...bins.keys()].filter((each) => bins[each]).sort((a, b) => bins[b] - bins[a] || a - b)) {
    if (found.every((other) => Math.abs(other - i) * bar >= half(other) + half(i))) found.push(i);
  }
  return new Set(found);
}

function text(x, y, content) {
  const made = svg("text", { x, y, "text-anchor": "middle" });
  made.textContent = content;
  return made;
}

function rows(nodes) {
  const shown = nodes.slice(0, MOST_ROWS);
  const cells = shown.map((node) => [
    el("a", { href: `#/node/${encodeURIComponent(node.name)}` }, node.name), inWords(node),
    percent(node.cpu?.mean), percent(node.cpu?.deviation), percent(node.memory?.mean), percent(node.memory?.deviation),
    node.cpu?.window ?? NONE,
  ]);
  const made = table("Nodes", [["Node"], ["State"], ["CPU", "number"], ["± deviation", "number"], ["Memory", "number"],
    ["± deviation", "number"], ["Window"]], cells, { empty: "no matching nodes" });
  const rest = nodes.length - shown.length;
  return rest > 0 ? el("div", {}, made, el("p.quiet", {}, `and ${count(rest, "more node", "more nodes")}: filter by name or state`)) : made;
}

function inWords(node) {
  if (node.state === STATES.silent) return `${silence(node)}; ${lastLoad(node)}`;
  return node.age == null ? LABELS[node.state] : `${LABELS[node.state]} for ${seconds(node.age)}`;
}

function key(metric) {
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
    sample({ ...load(50), state: STATES.stale }, "stale (last windows)"), sample({ state: STATES.silent }, "silent"),
    ...[STATES.unheard, STATES.quarantined, STATES.lost].map((state) => sample({ state }, LABELS[state])),
  ];
}
