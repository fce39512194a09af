// The view of mean and deviation of every node, and of the score of TargetLoadPacking.

import { ask, post } from "../common/api.js";
import { CanvasList } from "../fleet/canvas-list.js";
import { term } from "../terms/definitions.js";
import { choice, el, field, numbers, renew } from "../common/dom.js";
import { describe, openNode } from "../fleet/fleet.js";
import { count, percent } from "../common/format.js";
import { METRICS, STATES } from "../load.js";
import { EXAMPLE } from "../score/manifest.js";
import { Plot } from "./plot.js";
import { colour, heat, onThemeChange } from "../common/theme.js";

const DEFAULTS = { margin: 1, target: 40 }; // defaults of the plug-ins

export function riskView(app) {
  const scatter = new Plot({
    x: { label: "mean µ, % of capacity", from: 0, to: 100 }, y: { label: "deviation σ, % of capacity", from: 0, to: 25 },
    dot: (node) => dotOf(node, node.load.mean, node.load.deviation),
  });
  const curve = new Plot({
    x: { label: "CPU, % of capacity", from: 0, to: 100 }, y: { label: "score", from: 0, to: 105 }, height: 320,
    dot: (node) => dotOf(node, node.load.mean, packing(node.load.mean, wants().target)),
  });
  const spread = new CanvasList({
    label: "Nodes by mean and deviation", painter: scatter, open: openNode,
    describe: (node) => [...describe(node), `µ + ${wants().margin} × σ is ${percent(reach(node, wants()))}`],
  });
  const packed = new CanvasList({
    label: "Nodes on the curve of TargetLoadPacking", painter: curve, open: openNode,
    describe: (node) => [...describe(node), `score ${packing(node.load.mean, wants().target).toFixed(0)} at the current load`],
  });
  const summary = el("div"), tools = el("div.tools"), targetTools = el("div.tools"), place = el("div"), packedPlace = el("div");
  const words = el("p.quiet"), from = el("p.quiet");
  const root = el("div.stack", {}, summary,
    el("section.card", {}, el("h2", {}, "Mean and deviation"), tools, place, words,
      el("p.quiet", {}, "Terms: ", term("mean"), ", ", term("deviation"), ", ", term("margin"), ", ", term("window"), ". Squares are ", term("stale"), " nodes.")),
    el("section.card", {}, el("h2", {}, "TargetLoadPacking, ", term("target")), targetTools, packedPlace, from));
  const forget = onThemeChange(() => update());
  let configured = {}, built = "";

  function wants() {
    const number = (name, lowest, highest) => {
      const value = Number.parseFloat(app.params.get(name));
      return value >= lowest && value <= highest ? value : configured[name] ?? DEFAULTS[name];
    };
    const metric = app.params.get("metric");
    return { metric: Object.hasOwn(METRICS, metric) ? metric : "cpu", margin: number("margin", 0, 10), target: number("target", 1, 99) };
  }

  function build() {
    const now = wants();
    const spin = (name, label, limits) => field(label, {
      type: "number", value: now[name], ...limits, oninput: (event) => app.set({ [name]: event.target.value }),
    });
    tools.replaceChildren(
      choice("Of", Object.entries(METRICS), now.metric, (metric) => app.set({ metric })),
      choice("Window", (app.state.overview?.windows ?? ["5m", "10m", "15m"]).map((each) => [each, each]), app.window,
        (window) => app.set({ window })),
      spin("margin", "margin", { min: 0, max: 10, step: 0.5 }));
    targetTools.replaceChildren(spin("target", "target utilization, %", { min: 1, max: 99, step: 5 }));
  }

  function update() {
    const wanted = wants();
    const now = JSON.stringify([app.state.overview?.windows, configured]);
    if (built !== now) {
      built = now;
      build();
    }
    const nothing = app.nothing();
    const known = withLoad(app.state.nodes, wanted.metric).sort((a, b) => reach(b, wanted) - reach(a, wanted));
    const about = JSON.stringify([wanted, known.map(({ name, load }) => [name, load.mean, load.deviation])]);
    if (summary.dataset.about !== about) renew(summary, numbersOf(known, wanted)); // keeps an open definition open
    summary.dataset.about = about;
    summary.hidden = Boolean(nothing);
    show(place, nothing, spread);
    show(packedPlace, nothing, packed);
    const most = Math.max(20, ...known.map((node) => node.load.deviation));
    scatter.y.to = Math.ceil((most * 1.1) / 5) * 5;
    scatter.lines = limits(wanted, scatter.y.to);
    spread.set(known);
    curve.lines = [packingLine(wanted.target)];
    const cpu = app.state.nodes.filter((node) => node.cpu).map((node) => ({ ...node, load: node.cpu }));
    packed.set(cpu.sort((a, b) => b.load.mean - a.load.mean || a.name.localeCompare(b.name)));
    words.textContent = (known.length || nothing ? "" : "No node has a deviation yet: it is available once a window is half full. ")
      + "If load had a Gaussian distribution, a node on the line would exceed its capacity in one of 6 cases with margin 1, in one "
      + "of 40 with margin 2, and in one of 700 with margin 3. LoadVariationRiskBalancing prefers nodes far to the left of the "
      + "line, so that all nodes approach the same distance from it.";
    from.textContent = "Each node is shown with the score for a pod without CPU usage: highest at the target, decreasing above it. "
      + (configured.target == null ? "The target is the plug-in's default." : `The target ${configured.target} is configured in the profile ${configured.profile}.`);
  }

  return {
    title: "Risk", root, update,
    /** Requests the plug-in arguments of the profiles once. */
    async refresh() {
      if (configured.asked || !app.state.overview?.scheduler) return;
      const { body } = await ask("scheduler/plugins");
      configured = { asked: true };
      for (const profile of body.profiles) Object.assign(configured, { ...await argumentsOf(profile), ...configured });
      update();
    },
    end() {
      spread.end();
      packed.end();
      forget();
    },
  };
}

/** The arguments of a profile's plug-ins, read from the explanation of an example pod. */
async function argumentsOf(profile) {
  const { nodes } = await post(`scheduler/${encodeURIComponent(profile)}/score?limit=1`, EXAMPLE, "application/yaml");
  const found = {};
  for (const { name, inputs } of nodes[0]?.plugins ?? []) {
    if (name === "TargetLoadPacking") Object.assign(found, { target: inputs.targetUtilization, profile });
    if (name === "LoadVariationRiskBalancing") found.margin = inputs.safeVarianceMargin;
  }
  return found;
}

function show(place, nothing, list) {
  if (nothing) place.replaceChildren(nothing);
  else if (place.firstChild !== list.root) place.replaceChildren(list.root);
}

function withLoad(nodes, metric) {
  return nodes.filter((node) => node[metric]?.deviation != null).map((node) => ({ ...node, load: node[metric] }));
}

function reach(node, { margin }) {
  return node.load.mean + margin * node.load.deviation;
}

function dotOf(node, x, y) {
  return { x, y, fill: heat(node.load.mean).fill, shape: node.state === STATES.stale ? "square" : "circle" };
}

function numbersOf(nodes, wanted) {
  const beyond = nodes.filter((node) => reach(node, wanted) > 100);
  const mean = (pick) => (nodes.length ? nodes.reduce((sum, node) => sum + pick(node), 0) / nodes.length : null);
  return numbers([
    ["Beyond the line", [count(beyond.length, "node"), beyond.slice(0, 3).map((node) => node.name).join(", ") || "none"]],
    ["Nearest to the line", [percent(nodes[0] ? reach(nodes[0], wanted) : null), nodes[0]?.name]],
    [term("mean", "Fleet, mean µ"), percent(mean((node) => node.load.mean))],
    [term("deviation", "Fleet, mean σ"), percent(mean((node) => node.load.deviation))],
  ]);
}

/** The line µ + margin × σ = 100 %; the area to its right is shaded. */
function limits({ margin }, top) {
  const meets = margin * top >= 100 ? [0, 100 / margin] : [100 - margin * top, top];
  return [{
    points: [[100, 0], meets], beyond: [[100, 0], meets, [meets[0], top], [100, top]], stroke: colour("bad"),
    label: `µ + ${margin} σ = 100 %`, at: [meets[0] + (100 - meets[0]) * 0.15, meets[1] * 0.85], align: "right",
  }];
}

/** The score of Trimaran's TargetLoadPacking for a load and target in percent, not rounded. */
export function packing(load, target) {
  if (load > 100) return 0;
  return load > target ? (target * (100 - load)) / (100 - target) : ((100 - target) * load) / target + target;
}

function packingLine(target) {
  return {
    points: [[0, target], [target, 100], [target, target], [100, 0]], stroke: colour("accent"), label: `target ${target} %`,
    at: [target, 100],
  };
}
