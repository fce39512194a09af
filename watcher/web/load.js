// From the documents of the API to nodes with their load. No elements, no questions.

/** A node is fresh, stale (its last windows are served, with their age), or it is in no list and has no load: silent
 *  (it gives no samples any more), unheard (the cluster has it, and it never gave any), quarantined, or lost. */
export const STATES = { fresh: "fresh", stale: "stale", silent: "silent", unheard: "unheard", quarantined: "quarantined", lost: "lost" };
/** The same as they are told. */
export const LABELS = { ...STATES, unheard: "never heard of" };
export const METRICS = { cpu: "CPU", memory: "Memory" };

/** Nodes with { name, state, age, cpu, memory }, of which the last two are { mean, deviation, window } or null; silent
 *  ones with { last: { sampled, cpu, memory } } too, which is no load: it counts in nothing. */
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
    if (there.has(name)) continue; // heard of again since
    if (sampled == null) nodes.push(without(name, STATES.unheard, null));
    else {
      const age = Math.max(0, (overview?.time ?? sampled) - sampled);
      nodes.push({ ...without(name, STATES.silent, age), last: { sampled, cpu: lastCpu, memory: lastMemory } });
    }
  }
  return nodes;
}

function loadsOf(columns, type) {
  const loads = new Array(columns?.nodes.length ?? 0).fill(null);
  const fill = (operator, put) => {
    for (const column of columns?.columns ?? []) {
      if (column.type !== type || column.operator !== operator) continue;
      column.values.forEach((value, row) => { if (value != null) put(row, value, column.window); });
    }
  };
  fill("Latest", (row, value) => { loads[row] = { mean: value, deviation: null, window: "newest sample" }; });
  fill("AVG", (row, value, window) => { loads[row] = { mean: value, deviation: null, window }; });
  fill("STD", (row, value) => { if (loads[row]) loads[row].deviation = value; });
  return loads;
}

const { compare } = new Intl.Collator("en", { numeric: true }); // ten times as quick as localeCompare
const byName = (a, b) => compare(a.name, b.name);
const ORDERS = {
  load: (metric) => (a, b) => (b[metric]?.mean ?? -1) - (a[metric]?.mean ?? -1),
  deviation: (metric) => (a, b) => (b[metric]?.deviation ?? -1) - (a[metric]?.deviation ?? -1),
  age: () => (a, b) => silence(b) - silence(a),
  name: () => byName,
};

/** Seconds; those never heard of stand between those that fell silent and those that did not. */
function silence(node) {
  return node.age ?? (node.state === STATES.unheard ? 0 : -1);
}

/** Those whose name contains `text` and that are in `state` ("all" for any), in an order of ORDERS. */
export function chosen(nodes, { text = "", state = "all", sort = "load", metric = "cpu" }) {
  const wanted = text.trim().toLowerCase();
  const order = (ORDERS[sort] ?? ORDERS.load)(metric);
  return nodes
    .filter((node) => (state === "all" || node.state === state) && node.name.toLowerCase().includes(wanted))
    .sort((a, b) => order(a, b) || byName(a, b));
}

/** Counts by state, and mean, quantiles and highest of a metric; null where no node has it. */
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

/** How many nodes have a mean in [0, 5), [5, 10), … [95, 100]. */
export function histogram(nodes, metric) {
  const bins = new Array(20).fill(0);
  for (const node of nodes) {
    if (node[metric]) bins[Math.min(19, Math.max(0, Math.floor(node[metric].mean / 5)))] += 1;
  }
  return bins;
}
