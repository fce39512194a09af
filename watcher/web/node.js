// The view of one node: history, findings, pods, and its current scores.

import { ApiError, ask, post } from "./api.js";
import { choice, el, numbers, renew, table, told } from "./dom.js";
import { bytes, clock, cores, count, moment, percent, plain, seconds } from "./format.js";
import { LABELS, STATES } from "./load.js";
import { pasted } from "./manifest.js";
import { colour, onThemeChange } from "./theme.js";
import { explanation } from "./why.js";

const RANGES = [["-1h", "1 h", 3600], ["-6h", "6 h", 21600], ["-24h", "24 h", 86400]];
const CHARTS = [["CPU", "AVG", "CPU, mean"], ["CPU", "STD", "CPU, deviation"], ["Memory", "AVG", "Memory, mean"], ["Memory", "STD", "Memory, deviation"]];
const HEIGHT = 200;
const MOST_PODS = 50;

export function nodeView(app) {
  const name = app.argument;
  const summary = el("div"), charts = el("div.columns"), findings = el("div"), pods = el("div"), scores = el("div.stack"), known = el("div");
  const ranges = el("div.tools");
  const root = el("div.stack", {}, el("h2", {}, `Node ${name}`), summary,
    el("section.card", {}, el("h2", {}, "History"), ranges, charts),
    el("div.columns", {},
      el("section.card", {}, el("h2", {}, "Current scores"), scores),
      el("div.stack", {},
        el("section.card", {}, el("h2", {}, "Pods"), pods),
        el("section.card", {}, el("h2", {}, "Findings"), findings),
        el("section.card", {}, el("h2", {}, "State in the scheduling plug-ins"), known))));
  const pictures = new Pictures(charts);
  let built = "";

  function update() {
    const node = app.state.nodes.find((each) => each.name === name);
    summary.replaceChildren(node ? numbersOf(node) : app.nothing() ?? told(`No metrics for node ${name}.`, "The fleet view lists all nodes."));
    if (built === range()) return;
    built = range();
    renew(ranges, choice("Time range", RANGES.map(([value, label]) => [value, label]), built, (chosen) => {
      built = chosen;
      app.set({ range: chosen });
      pictures.range = "";
      askHistory().catch(() => {});
    }));
  }

  /** The time range of the history: the selected one, or the shortest one that contains data of a silent node. */
  function range() {
    const age = app.state.nodes.find((each) => each.name === name)?.age ?? 0;
    return app.params.get("range") ?? (RANGES.find(([, , reach]) => age < reach / 2) ?? RANGES.at(-1))[0];
  }

  async function askHistory() {
    const windows = app.state.overview?.windows ?? ["5m", "10m", "15m"];
    const from = range();
    const step = { "-1h": "1m", "-6h": "2m", "-24h": "10m" }[from] ?? "1m";
    const query = `host=${encodeURIComponent(name)}&type=CPU&type=Memory&operator=AVG&operator=STD&from=${encodeURIComponent(from)}&step=${step}`;
    await into(charts, async () => {
      const asked = await Promise.all(windows.map((window) => ask(`api/v1/history?${query}&window=${window}`)));
      await pictures.show(asked.map(({ body }) => body), windows);
      return null;
    });
  }

  async function askFindings() {
    const { body } = await ask("api/v1/findings");
    const mine = body.findings.filter((each) => each.node === name);
    return table("Findings of this node", [["Kind"], ["Metric", "code"], ["Reason", "long"], ["Remedy"], ["Last seen", "name"]],
      mine.map((each) => [each.kind, each.metric || "all", each.reason, each.remedy, `${seconds(Math.max(0, body.timestamp - each.last_seen))} ago`]),
      { empty: "no findings" });
  }

  async function askPods() {
    const { body } = await ask(`api/v1/pods?host=${encodeURIComponent(name)}`);
    const rows = body.pod.map((pod, i) => ({ name: `${body.namespace[i]}/${pod}`, cores: body.cores[i], bytes: body.bytes[i] }))
      .sort((a, b) => (b.cores ?? -1) - (a.cores ?? -1));
    const rest = rows.length - MOST_PODS;
    return el("div", {}, table("Pods of this node", [["Pod", "long"], ["Cores", "number"], ["Memory", "number"]],
      rows.slice(0, MOST_PODS).map((pod) => [pod.name, cores(pod.cores), bytes(pod.bytes)])),
    rest > 0 ? el("p.quiet", {}, `and ${count(rest, "more pod")}`) : null);
  }

  async function askScores(profiles) {
    const made = await Promise.all(profiles.map(async (profile) => {
      const path = `scheduler/${encodeURIComponent(profile)}/score?limit=1&node=${encodeURIComponent(name)}`;
      const body = await post(path, pasted(), "application/yaml");
      const [node] = body.nodes;
      return el("div", {}, profiles.length > 1 ? el("h3", {}, `Profile ${profile}`) : null,
        node ? explanation(node, body.time) : el("p", {}, "The scheduling plug-ins do not know this node."));
    }));
    return el("div.stack", {}, el("p.quiet", {}, "For the pod in the ", el("a", { href: "#/score" }, "score explorer"), "."), made);
  }

  async function askKnown(profile) {
    const { body } = await ask(`scheduler/${encodeURIComponent(profile)}/nodes/${encodeURIComponent(name)}`);
    const node = body.nodes[name];
    const amounts = (each) => Object.entries(each).map(([resource, value]) => amount(resource, value)).join(", ") || "none";
    return el("dl.steps", {}, [
      ["known", plain(node.known)], ...["capacity", "allocatable", "requested", "limits"].map((key) => [key, amounts(node[key])]),
      ["pods", String(node.pods)], ["recently assigned", count(node.recent.length, "pod")], ["reserved for", node.reserved.join(", ") || "none"],
    ].map(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]).flat());
  }

  return {
    title: name, root, update,
    async refresh() {
      const work = [into(findings, askFindings), into(pods, askPods), askHistory()];
      if (app.state.overview?.scheduler) {
        const { body: { profiles } } = await ask("scheduler/plugins");
        work.push(into(scores, () => askScores(profiles)), into(known, () => askKnown(profiles[0])));
      } else {
        for (const each of [scores, known]) each.replaceChildren(el("p.quiet", {}, "No scheduling plug-ins are configured ([scheduler.NAME])."));
      }
      await Promise.all(work);
    },
    end() {
      pictures.end();
    },
  };
}

/** Renders the result of `make` into `place`. An API error is shown there and does not affect other parts of the view. */
async function into(place, make) {
  try {
    const made = await make();
    if (made) renew(place, made);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status) place.replaceChildren(el("p", {}, error.message), el("p.quiet", {}, error.hint));
  }
}

function amount(resource, value) {
  if (resource === "cpu") return `${value / 1000} cores`;
  if (resource === "memory" || resource === "ephemeral-storage") return `${bytes(value)} of ${resource}`;
  return `${value} ${resource}`;
}

function numbersOf(node) {
  const age = seconds(node.age ?? 0);
  const state = {
    [STATES.stale]: ["stale", `last sample ${age} old`], [STATES.lost]: `lost ${age} ago`,
    [STATES.silent]: [`silent for ${age}`, node.last && `since ${moment(node.last.sampled)}; not listed by the API`],
    [STATES.unheard]: [LABELS.unheard, "in the cluster, but not in the source"],
  }[node.state] ?? LABELS[node.state];
  const load = (each, last) => each || last == null ? [percent(each?.mean), each ? `± ${percent(each.deviation)}, ${each.window}` : ""]
    : [percent(last), "last value"];
  return numbers([["State", state], ["CPU", load(node.cpu, node.last?.cpu)], ["Memory", load(node.memory, node.last?.memory)]]);
}

/** The charts of the history. The chart library is loaded on first use. */
class Pictures {
  constructor(place) {
    this.place = place;
    this.charts = [];
    this.words = []; // text alternatives for screen readers; visible without data
    this.range = "";
    this.forget = onThemeChange(() => this.redraw());
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(place);
  }

  async show(answers, windows) {
    const { default: UPlot } = await import("./vendor/uPlot.esm.js");
    styles();
    this.last = [answers, windows];
    const data = CHARTS.map(([type, operator]) => aligned(answers, type, operator));
    this.shown = [answers[0].start, answers[0].end];
    if (this.range === windows.join() && this.place.contains(this.charts[0]?.root ?? null)) {
      this.charts.forEach((chart, i) => chart.setData(data[i]));
      this.words.forEach((place, i) => say(place, data[i], windows));
      return;
    }
    this.clear();
    this.range = windows.join();
    const cards = CHARTS.map(([, , title]) => el("div.chart", {}, el("h3", {}, title)));
    this.place.replaceChildren(...cards);
    this.charts = data.map((each, i) => new UPlot(options(cards[i].clientWidth, windows, () => this.shown), each, cards[i]));
    this.words = cards.map(() => el("p"));
    cards.forEach((card, i) => {
      say(this.words[i], data[i], windows);
      card.append(this.words[i]);
    });
  }

  redraw() {
    this.range = "";
    if (this.last) this.show(...this.last);
  }

  fit() {
    for (const chart of this.charts) chart.setSize({ width: chart.root.parentElement.clientWidth, height: HEIGHT });
  }

  clear() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
  }

  end() {
    this.forget();
    this.sizes.disconnect();
    this.clear();
  }
}

function styles() {
  if (document.getElementById("uplot-style")) return;
  document.head.append(el("link", { id: "uplot-style", rel: "stylesheet", href: "web/vendor/uPlot.min.css" }));
}

/** [times, values of each response…] for a chart; null where a response has no value. */
function aligned(answers, type, operator) {
  const series = answers.map((answer) => new Map(answer.series
    .filter((each) => each.type === type && each.operator === operator).flatMap((each) => each.points)));
  const times = [...new Set(series.flatMap((each) => [...each.keys()]))].sort((a, b) => a - b);
  return [times, ...series.map((each) => times.map((time) => each.get(time) ?? null))];
}

function options(width, windows, shown) {
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  return {
    width, height: HEIGHT, cursor: { y: false }, scales: { x: { range: shown }, y: { range: (_, low, high) => [0, Math.max(10, (high ?? 10) * 1.1)] } },
    axes: [{ ...axis, values: (_, times) => times.map((time) => clock(time).slice(0, 5)) },
      { ...axis, values: (_, values) => values.map((value) => `${value} %`), size: 56 }],
    series: [{ value: (_, time) => (time == null ? "–" : clock(time)) }, ...windows.map((window, i) => ({
      label: window, stroke: colour(`series-${(i % 3) + 1}`), width: 2, dash: [[], [8, 4], [2, 3]][i % 3], spanGaps: false,
      value: (_, value) => percent(value),
    }))],
  };
}

function say(place, data, windows) {
  place.className = data[0].length ? "hidden-text" : "quiet";
  place.textContent = inWords(data, windows);
}

function inWords([times, ...series], windows) {
  if (!times.length) return "No stored data in this time range.";
  return series.map((values, i) => `${windows[i]}: last ${percent(values.findLast((value) => value != null))}`).join(", ");
}
