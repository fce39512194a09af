// Groups of nodes: by a label of the Kubernetes API, or by the stem of the name (compute-a-01 is in compute-a).

const KNOWN = {
  "topology.kubernetes.io/zone": "zone",
  "node.kubernetes.io/instance-type": "instance type",
  "topology.kubernetes.io/region": "region",
  "kubernetes.io/arch": "architecture",
};
export const STEM = "name";
const WITHOUT = "without this label";
const { compare } = new Intl.Collator("en", { numeric: true });

/** The part of a name before its last number. */
export function stemOf(name) {
  return name.replace(/[-._]?\d+$/, "") || name;
}

/** The choices of "Group by" as [value, text]: labels with at least two values, and the stem of the name. */
export function groupings(labels, nodes) {
  const options = (labels?.labels ?? []).filter((each) => each.values.length > 1)
    .map((each) => [each.name, KNOWN[each.name] ?? each.name]);
  const stems = new Set(nodes.map((node) => stemOf(node.name)));
  if (stems.size > 1 && stems.size <= nodes.length / 2) options.push([STEM, "start of the name"]);
  return options.length ? [["", "no groups"], ...options] : [];
}

/** The group of each node name by `by`, a value of `groupings`; null without groups. */
export function groupOf(by, labels) {
  if (!by) return null;
  if (by === STEM) return stemOf;
  const label = labels?.labels.find((each) => each.name === by);
  if (!label) return null;
  const values = new Map(labels.nodes.map((name, row) => [name, label.nodes[row] == null ? WITHOUT : label.values[label.nodes[row]]]));
  return (name) => values.get(name) ?? WITHOUT;
}

/** Sorted nodes in groups, by name: [{ name, nodes }]; the order within a group stays. */
export function grouped(nodes, group) {
  const groups = new Map();
  for (const node of nodes) {
    const name = group(node.name);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(node);
  }
  return [...groups].map(([name, members]) => ({ name, nodes: members }))
    .sort((a, b) => (a.name === WITHOUT) - (b.name === WITHOUT) || compare(a.name, b.name));
}

/** The mean load of a group, null if unknown. */
export function meanOf(nodes, metric) {
  const known = nodes.filter((node) => node[metric]);
  return known.length ? known.reduce((sum, node) => sum + node[metric].mean, 0) / known.length : null;
}
