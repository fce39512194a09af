// The table of all nodes: headers sort, pages of 100 rows, names can be copied, and all rows can be saved as CSV.

import { el, renew } from "../common/dom.js";
import { count, percent, NONE } from "../common/format.js";
import { METRICS } from "../load.js";
import { signed } from "./trend.js";

const ROWS = 100;
const { compare } = new Intl.Collator("en", { numeric: true });

/** Columns as { key, head, value(node), text(node, value)?, saved(node)?, kind }; `value` sorts, null last, and `saved` is
 *  the text in a CSV file. `words(node)` is the state of a node in words, "" if it is fresh. */
function columnsOf({ words, group, groupHead, window, metrics, metric }) {
  const columns = [{ key: "name", head: "Node", value: (node) => node.name, kind: "name" }];
  if (group) columns.push({ key: "group", head: groupHead, value: (node) => group(node.name), kind: "" });
  for (const [key, label] of Object.entries(metrics)) {
    if (!Object.hasOwn(METRICS, key)) {
      columns.push({ key, head: label, value: (node) => node[key]?.mean, text: (_, value) => percent(value), kind: key === metric ? "number" : "number wide" });
      continue;
    }
    columns.push(
      { key, head: label, value: (node) => node[key]?.mean, text: (node) => loadOf(node[key], window), kind: "number" },
      { key: `${key}-deviation`, head: "± deviation", value: (node) => node[key]?.deviation, text: (_, value) => percent(value), kind: "number wide" },
      { key: `${key}-trend`, head: "Trend", value: (node) => node.trend?.[key], text: (_, value) => signed(value), kind: "number wide" },
    );
  }
  columns.push({ key: "state", head: "State", value: (node) => (words(node) ? node.age ?? 0 : null), text: words, kind: "state", saved: words });
  return columns;
}

/** The mean of a load; the window is shown only if it is not the requested one. */
function loadOf(load, window) {
  if (!load) return NONE;
  return load.window === window ? percent(load.mean) : [percent(load.mean), el("small.quiet", {}, ` ${load.window}`)];
}

function compareValues(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "string" ? compare(a, b) : a - b;
}

/** Rows sorted by a column; `order` is its key, with "-" before it for a descending order. Unknown values are last. */
function ordered(nodes, columns, order) {
  const column = columns.find((each) => each.key === order.replace(/^-/, "")) ?? columns[0];
  const down = order.startsWith("-") ? -1 : 1;
  return nodes.map((node) => [column.value(node), node]).sort(([a, one], [b, other]) =>
    (a == null || b == null ? compareValues(a, b) : down * compareValues(a, b)) || compare(one.name, other.name)).map(([, node]) => node);
}

export class NodeTable {
  constructor(app) {
    this.app = app;
    this.root = el("div.node-table");
    this.csv = () => ""; // of the newest data
    this.shown = ""; // what the table shows; it is replaced only if this changes, so that text can be selected
  }

  /** Shows nodes. `options`: words, group, groupHead, window, metrics (as in `columnsOf`), metric, labels, and `compared`,
   *  the windows of the trend in words. */
  set(nodes, options) {
    const { app } = this;
    const all = columnsOf(options);
    const columns = all.filter((each) => each.key !== "state" || nodes.some((node) => options.words(node)));
    const order = app.params.get("order") ?? `-${options.metric}`;
    const rows = ordered(nodes, all, order);
    app.listed = rows.map((node) => node.name);
    const pages = Math.max(1, Math.ceil(rows.length / ROWS));
    const page = Math.min(pages, Math.max(1, Number(app.params.get("page")) || 1));
    const shown = rows.slice((page - 1) * ROWS, page * ROWS);
    this.csv = () => csvOf(rows, all, options.labels);
    const now = JSON.stringify([rows.length, page, order, options.window, columns.map((each) => [each.key, each.head]),
      shown.map((node) => [node.name, node.cpu, node.memory, node.cpuBound, node.memoryBound, node.trend, node.group, options.words(node)])]);
    if (now === this.shown) return;
    this.shown = now;
    renew(this.root, this.bar(rows, page, pages, () => this.csv(), options), this.table(shown, columns, order, options.words));
  }

  bar(rows, page, pages, csv, { window, compared }) {
    const go = (text, label, to) => el("button.plain", {
      disabled: to < 1 || to > pages, "aria-label": label, onclick: () => this.app.set({ page: to === 1 ? null : to }),
    }, text);
    const first = rows.length ? (page - 1) * ROWS + 1 : 0;
    return el("div.table-bar", {},
      el("span.quiet", { role: "status" }, `${first.toLocaleString("en")}–${Math.min(rows.length, page * ROWS).toLocaleString("en")} of ${count(rows.length, "node")}`),
      pages > 1 ? el("span.pages", {}, go("‹ previous", "previous page", page - 1), go("next ›", "next page", page + 1)) : null,
      el("span.quiet", {}, `means of ${window}`, el("span.wide", {}, `, trend: ${compared}`)),
      el("button.plain", { onclick: () => save(csv(), "load-watcher-nodes.csv") }, "Download CSV"));
  }

  table(nodes, columns, order, words) {
    const sorted = order.replace(/^-/, ""), down = order.startsWith("-");
    const heads = columns.map(({ key, head, kind }) => el("th", {
      className: kind, scope: "col", "aria-sort": sorted === key ? (down ? "descending" : "ascending") : "none",
    }, el("button.plain.sorter", {
      "aria-label": `${headOf(columns, key)}: sort`,
      onclick: () => this.app.set({ page: null, order: sorted === key ? `${down ? "" : "-"}${key}` : `${kind.startsWith("number") ? "-" : ""}${key}` }),
    }, head, el("span.direction", { "aria-hidden": "true" }, sorted === key ? (down ? " ▼" : " ▲") : ""))));
    const rows = nodes.map((node) => el("tr", {}, columns.map((column, i) => i ? cell(node, column) : head(node, words(node)))));
    if (!rows.length) rows.push(el("tr", {}, el("td.quiet", { colSpan: columns.length }, "no matching nodes")));
    return el("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Nodes, table" },
      el("table", {}, el("caption.hidden-text", {}, "Nodes"), el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)));
  }
}

/** The first cell: name, button to copy it, and the state, which is visible only on small screens. */
function head(node, state) {
  return el("th.name", { scope: "row" }, el("a", { href: `#/node/${encodeURIComponent(node.name)}` }, node.name),
    copyButton(node.name), state ? el("small.state", {}, state) : null);
}

function headOf(columns, key) {
  const { head } = columns.find((each) => each.key === key);
  const of = key.includes("-") ? columns.find((each) => each.key === key.split("-")[0])?.head : null;
  return of ? `${of} ${head.replace("± ", "").toLowerCase()}` : head;
}

function cell(node, { value, text, kind }) {
  const known = value(node);
  return el("td", { className: kind }, text ? text(node, known) : known ?? "");
}

/** A button that copies a text; it says "copied" for a moment. */
export function copyButton(text, label = text) {
  const button = el("button.copy", { "aria-label": `copy ${label}`, title: "copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(text);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  });
  return button;
}

function csvOf(nodes, columns, labels) {
  const places = new Map((labels?.nodes ?? []).map((name, row) => [name, row]));
  const more = labels?.labels ?? [];
  const kept = columns.filter((each) => each.key !== "group");
  const lines = [[...kept.map((each) => each.key), ...more.map((each) => each.name)]];
  for (const node of nodes) {
    const row = places.get(node.name);
    lines.push([...kept.map((each) => each.saved?.(node) ?? number(each.value(node))), ...more.map((each) => each.values[each.nodes[row]] ?? "")]);
  }
  return lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
}

function number(value) {
  return typeof value === "number" ? String(Number(value.toFixed(3))) : value ?? "";
}

/** A CSV field. Spreadsheets run a text that begins with =, +, - or @ as a formula, so such a text gets an apostrophe. */
function quoted(value) {
  const text = /^[=+@\t\r]|^-(?![\d.]+$)/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function save(text, name) {
  const href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
