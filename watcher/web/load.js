// Converts documents of the API to nodes with their load. No DOM access, no requests.

/** A node is fresh, stale (its last windows are served, with their age), or is not listed and has no load: silent (no
 *  more samples), unheard (in the cluster, but without any samples so far), quarantined, or lost. */
export const STATES = { fresh: "fresh", stale: "stale", silent: "silent", unheard: "unheard", quarantined: "quarantined", lost: "lost" };
/** Display texts of the states. */
export const LABELS = { ...STATES, unheard: "never reported" };
export const METRICS = { cpu: "CPU", memory: "Memory" };
const NEWEST = "newest sample"; // the "window" of a load without one
/** Metrics of forecasts: { key, type, label }. */
export const BOUNDS = [{ key: "cpuBound", type: "CPU", label: "CPU forecast" }, { key: "memoryBound", type: "Memory", label: "Memory forecast" }];

/** Nodes as { name, state, age, cpu, memory }; `age` is in seconds, cpu and memory are { mean, deviation, window } in
 *  percent or null. Silent nodes also have { last: { sampled, cpu, memory } }, which is not included in statistics. */
export function nodesOf(columns, overview, silent) {
  const cpu = loadsOf(columns, METRICS.cpu);
  const memory = loadsOf(columns, METRICS.memory);
  const ages = columns?.age_s ?? [];
  const nodes = (columns?.nodes ?? []).map((name, row) => ({
    name, state: ages[row] == null ? STATES.fresh : STATES.stale, age: ages[row] ?? null, cpu: cpu[row], memory: memory[row],
  }));
  const without = (name, state, age) => ({ name, state, age, cpu: null, memory: null });
  for (const name of overview?.quarantined ?? []) nodes.push(without(name, STATES.quarantined, null));
  const there = new Set(nodes.map((node) => node.name));
  for (const { name, sampled } of overview?.lost ?? []) {
    if (!there.has(name)) nodes.push(without(name, STATES.lost, overview.time - sampled));
    there.add(name);
  }
  for (const { name, sampled, cpu: lastCpu, memory: lastMemory } of silent?.nodes ?? []) {
    if (there.has(name)) continue; // reported again in the meantime
    if (sampled == null) nodes.push(without(name, STATES.unheard, null));
    else {
      const age = Math.max(0, (overview?.time ?? sampled) - sampled);
      nodes.push({ ...without(name, STATES.silent, age), last: { sampled, cpu: lastCpu, memory: lastMemory } });
    }
  }
  return nodes;
}

/** Bounds of forecasts by node name as { cpuBound, memoryBound }, each { mean, window }: the bound in percent, and its
 *  horizon. `columns` are those with the operator FORECAST. */
export function boundsOf(columns) {
  const found = new Map();
  for (const { key, type } of BOUNDS) {
    const column = columns.columns.find((each) => each.type === type && each.operator === "FORECAST");
    column?.values.forEach((value, row) => {
      if (value != null) found.set(columns.nodes[row], { ...found.get(columns.nodes[row]), [key]: { mean: value, deviation: null, window: column.window } });
    });
  }
  return found;
}

function loadsOf(columns, type) {
  const loads = new Array(columns?.nodes.length ?? 0).fill(null);
  const fill = (operator, put) => {
    for (const column of columns?.columns ?? []) {
      if (column.type !== type || column.operator !== operator) continue;
      column.values.forEach((value, row) => { if (value != null) put(row, value, column.window); });
    }
  };
  fill("Latest", (row, value) => { loads[row] = { mean: value, deviation: null, window: NEWEST }; });
  fill("AVG", (row, value, window) => { loads[row] = { mean: value, deviation: null, window }; });
  fill("STD", (row, value) => { if (loads[row]) loads[row].deviation = value; });
  return loads;
}

const { compare } = new Intl.Collator("en", { numeric: true }); // ten times as fast as localeCompare
const byName = (a, b) => compare(a.name, b.name);
const ORDERS = {
  load: (metric) => (a, b) => (b[metric]?.mean ?? -1) - (a[metric]?.mean ?? -1),
  deviation: (metric) => (a, b) => (b[metric]?.deviation ?? -1) - (a[metric]?.deviation ?? -1),
  age: () => (a, b) => silence(b) - silence(a),
  name: () => byName,
};

/** Sort key in seconds; nodes that never reported are sorted between silent nodes and all others. */
function silence(node) {
  return node.age ?? (node.state === STATES.unheard ? 0 : -1);
}

/** Nodes with `text` in their name and in `state` ("all" for any), sorted by an order of ORDERS. */
export function chosen(nodes, { text = "", state = "all", sort = "load", metric = "cpu" }) {
  const wanted = text.trim().toLowerCase();
  const order = (ORDERS[sort] ?? ORDERS.load)(metric);
  return nodes
    .filter((node) => (state === "all" || node.state === state) && node.name.toLowerCase().includes(wanted))
    .sort((a, b) => order(a, b) || byName(a, b));
}

/** Number of nodes by state, and mean, quantiles and maximum of a metric; null if no node has the metric. */
export function totals(nodes, metric) {
  const states = Object.fromEntries(Object.values(STATES).map((state) => [state, 0]));
  for (const node of nodes) states[node.state] += 1;
  const known = nodes.filter((node) => node[metric] != null).sort((a, b) => a[metric].mean - b[metric].mean);
  if (!known.length) return { states, known: 0, mean: null, median: null, p90: null, highest: null };
  const at = (share) => {
    const place = share * (known.length - 1), below = Math.floor(place), above = Math.ceil(place);
    return known[below][metric].mean + (place - below) * (known[above][metric].mean - known[below][metric].mean);
  };
  const mean = known.reduce((sum, node) => sum + node[metric].mean, 0) / known.length;
  return { states, known: known.length, mean, median: at(0.5), p90: at(0.9), highest: known.at(-1) };
}

/** Number of nodes with a mean in [0, 5), [5, 10), … [95, 100] percent. */
export function histogram(nodes, metric) {
  const bins = new Array(20).fill(0);
  for (const node of nodes) {
    if (node[metric]) bins[Math.min(19, Math.max(0, Math.floor(node[metric].mean / 5)))] += 1;
  }
  return bins;
}
