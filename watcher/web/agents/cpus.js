// The CPUs of a machine by socket and NUMA node, and the owner of each CPU.

import { el } from "../common/dom.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** The CPU numbers of a cpuset text such as "0-3,8". */
export function numbersOf(text) {
  if (!text) return [];
  return text.split(",").flatMap((part) => {
    const [from, to = from] = part.split("-").map(Number);
    return Array.from({ length: to - from + 1 }, (_, i) => from + i);
  });
}

/** CPU -> { kind: "reserved" | "pool" | "own" | "free", name }. CPUs allocated to one container are in no pool. */
export function cpusOf(state) {
  const owners = new Map();
  const give = (text, kind, name) => { for (const cpu of numbersOf(text)) owners.set(cpu, { kind, name }); };
  const machine = Object.values(state.plugins?.cpu?.state ?? {});
  for (const each of machine) give(each.default_cpuset, "free", "shared by all other pods");
  for (const [name, pool] of Object.entries(state.pools ?? {})) give(pool.cpus, "pool", `pool ${name}`);
  for (const each of machine) give(each.reserved_cpuset, "reserved", "reserved for the system");
  const own = new Set(machine.flatMap((each) => numbersOf(each.allocated_cpuset)));
  for (const pod of state.pods ?? []) {
    for (const [container, given] of Object.entries(pod.containers)) {
      const cpus = numbersOf(given.cpu?.allocation_result);
      if (cpus.length && cpus.every((cpu) => own.has(cpu))) cpus.forEach((cpu) => owners.set(cpu, { kind: "own", name: `${pod.pod}, ${container}` }));
    }
  }
  return owners;
}

/** A box per socket with a box per NUMA node and a cell per CPU; the legend explains the letters in the cells. */
export function socketsOf(state, owners) {
  const { sockets = {}, numa = {} } = state.machine ?? {};
  if (!Object.keys(sockets).length) return el("p.quiet", {}, "CPUs are not managed by this QoS Resource Manager.");
  const names = [...new Map([...owners.values()].map((owner) => [owner.name, owner])).values()]
    .sort((a, b) => a.kind.localeCompare(b.kind) || a.name.localeCompare(b.name));
  const marks = new Map(names.map(({ name, kind }, i) => [name, { mark: kind === "reserved" ? "×" : kind === "free" ? "·" : LETTERS[i % 26], kind, hue: i % 6 }]));
  const boxes = Object.entries(sockets).map(([socket, text]) => {
    const inSocket = new Set(numbersOf(text));
    const nodes = Object.entries(numa).map(([node, cpus]) => [node, numbersOf(cpus).filter((cpu) => inSocket.has(cpu))]).filter(([, cpus]) => cpus.length);
    return el("section.socket", { "aria-label": `Socket ${socket}` }, el("h3", {}, `Socket ${socket}`), nodes.map(([node, cpus]) =>
      el("div.numa", {}, el("h4", {}, `NUMA node ${node}`, el("span.hidden-text", {}, `: ${inWords(cpus, owners)}`)),
        el("div.cpus", { "aria-hidden": "true" }, cpus.map((cpu) => cell(cpu, owners.get(cpu), marks))))));
  });
  const legend = names.map(({ name }) => el("span", {}, sample(marks.get(name)), ` ${name}`));
  return el("div", {}, el("div.sockets", {}, boxes), el("p.legend", {}, legend));
}

function cell(cpu, owner, marks) {
  const mark = owner ? marks.get(owner.name) : null;
  return el("span", { className: `cpu ${mark?.kind ?? ""} hue-${mark?.hue ?? 0}`, title: `CPU ${cpu}: ${owner?.name ?? "unknown"}` },
    el("small", {}, String(cpu)), el("b", {}, mark?.mark ?? "?"));
}

function sample({ mark, kind, hue }) {
  return el("span", { className: `cpu ${kind} hue-${hue}`, "aria-hidden": "true" }, el("b", {}, mark));
}

function inWords(cpus, owners) {
  const counts = new Map();
  for (const cpu of cpus) {
    const name = owners.get(cpu)?.name ?? "unknown";
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].map(([name, many]) => `${many} ${name}`).join(", ");
}
