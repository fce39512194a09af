// The CPUs of a machine by socket and NUMA node, and who has each.

import { el } from "./dom.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/** The numbers of a cpuset's text, "0-3,8". */
export function numbersOf(text) {
  if (!text) return [];
  return text.split(",").flatMap((part) => {
    const [from, to = from] = part.split("-").map(Number);
    return Array.from({ length: to - from + 1 }, (_, i) => from + i);
  });
}

/** CPU -> { kind: "reserved" | "pool" | "own" | "free", name }. What is somebody's own is in no pool. */
export function cpusOf(state) {
  const owners = new Map();
  const give = (text, kind, name) => { for (const cpu of numbersOf(text)) owners.set(cpu, { kind, name }); };
  const machine = Object.values(state.plugins?.cpu?.state ?? {});
  for (const each of machine) give(each.default_cpuset, "free", "shared by the rest");
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

/** The picture: a box a socket, in it one a NUMA node, in it a cell a CPU with a letter that the legend explains. */
export function socketsOf(state, owners) {
  const { sockets = {}, numa = {} } = state.machine ?? {};
  if (!Object.keys(sockets).length) return el("p.quiet", {}, "The CPUs are not this manager's.");
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
  return el("span", { className: `cpu ${mark?.kind ?? ""} hue-${mark?.hue ?? 0}`, title: `CPU ${cpu}: ${owner?.name ?? "not known"}` },
    el("small", {}, String(cpu)), el("b", {}, mark?.mark ?? "?"));
}

function sample({ mark, kind, hue }) {
  return el("span", { className: `cpu ${kind} hue-${hue}`, "aria-hidden": "true" }, el("b", {}, mark));
}

function inWords(cpus, owners) {
  const counts = new Map();
  for (const cpu of cpus) {
    const name = owners.get(cpu)?.name ?? "not known";
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].map(([name, many]) => `${many} ${name}`).join(", ");
}
