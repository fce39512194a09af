// The view of placements: the recorded decisions of the extender, newest first; an address with a pod shows that pod.

import { ApiError, ask } from "../common/api.js";
import { el, field, select } from "../common/dom.js";
import { NONE, clock, count, moment } from "../common/format.js";
import { placementView } from "./pod.js";
import { nodeLink, podHref } from "./podlink.js";

const LIMIT = 50;
const MOST_SHOWN = 500; // entries of the list; "Older" asks for more
const STILL_OPEN = 120; // seconds for which the outcome of a shown decision is asked again
const OUTCOMES = [["", "all"], ["bound", "bound"], ["best", "bound to the best node"], ["other", "bound to another node"],
  ["rejected", "rejected by all nodes"], ["pending", "pending"], ["asked_again", "tried again"], ["deleted", "deleted"], ["unknown", "unknown"]];
const FATES = { best: ["good", "bound to the best node"], other: ["warn", "bound to another node"], bound: ["good", "bound"],
  rejected: ["bad", "rejected by all nodes"], pending: ["quiet", "pending"], asked_again: ["quiet", "tried again"],
  deleted: ["quiet", "deleted"], unknown: ["quiet", "outcome unknown"] };
const SETTINGS = `[scheduler.default]
plugins = [ { name = "TargetLoadPacking", args = { targetUtilization = 50 } } ]
reserve = "prioritize"`;

export function placementsView(app) {
  return app.argument.includes("/") ? placementView(app) : listView(app);
}

// --- the list --------------------------------------------------------------------------------------------------------

function listView(app) {
  const feed = el("ol.feed", { "aria-label": "Placements" }), state = el("p.quiet", { role: "status" }), trouble = el("div");
  const older = el("button.plain", { type: "button", hidden: true, onclick: () => askOlder().catch(ignored) }, "Older placements");
  const tools = el("section.card", { "aria-label": "Which placements" }, filters(), state);
  const card = el("section.card", {}, el("h2", {}, "Placements"), feed, older);
  const root = el("div.stack", {}, tools, trouble, card);
  let entries = new Map(); // time of the decision -> { item, placement }; the time is its key
  let newest = 0, stamp = "";

  function filters() {
    const changed = (name) => (event) => {
      app.set({ [name]: event.target.value.trim() });
      restart();
    };
    const text = (label, name) => field(label, { type: "search", value: app.params.get(name) ?? "", onchange: changed(name) });
    return el("div.tools", {}, text("Pod contains", "pod"), text("Namespace", "namespace"), text("Node", "node"),
      select("Outcome", OUTCOMES, app.params.get("outcome") ?? "", (value) => {
        app.set({ outcome: value });
        restart();
      }));
  }

  function restart() {
    entries = new Map();
    newest = 0;
    stamp = `${performance.now()}`;
    refresh().catch(ignored);
  }

  function path(more) {
    const query = new URLSearchParams({ limit: LIMIT, ...more });
    for (const name of ["pod", "namespace", "node", "outcome"]) {
      if (app.params.get(name)) query.set(name, app.params.get(name));
    }
    return `scheduler/placements?${query}`;
  }

  /** Asks for new decisions, and for those of the last minutes whose outcome may change. */
  async function refresh() {
    if (app.state.overview && !app.state.overview.scheduler) return off();
    const mine = stamp;
    try {
      const { body, changed } = await ask(path(newest ? { since: since() } : {}));
      if (mine !== stamp) return null; // a filter was changed in the meantime
      trouble.replaceChildren();
      if (!newest) {
        entries = new Map();
        feed.replaceChildren();
        older.hidden = !body.more;
      } else if (body.more) { // more new decisions than fit into one response
        newest = 0;
        return refresh();
      }
      if (changed || !newest) add(body.placements);
      tell(body);
      return null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status) trouble.replaceChildren(el("div.card", { role: "alert" }, el("p.bad", {}, error.message), el("p.quiet", {}, error.hint)));
      return null;
    }
  }

  function since() {
    const open = [...entries.values()].filter(({ placement }) => isOpen(placement) && newest - placement.time < STILL_OPEN);
    return Math.floor(open.length ? Math.min(...open.map(({ placement }) => placement.time)) : newest);
  }

  /** Adds new entries at the top, replaces changed ones in place, and leaves all others alone. */
  function add(placements) {
    for (const placement of [...placements].reverse()) {
      const before = entries.get(placement.time);
      if (before && same(before.placement, placement)) continue;
      const item = entry(placement);
      if (before) before.item.replaceWith(item);
      else if (placement.time > newest) feed.prepend(item);
      else feed.append(item);
      entries.set(placement.time, { item, placement });
      newest = Math.max(newest, placement.time);
    }
    while (entries.size > MOST_SHOWN) {
      const [last] = [...entries.keys()].sort((a, b) => a - b);
      entries.get(last).item.remove();
      entries.delete(last);
      older.hidden = false;
    }
  }

  async function askOlder() {
    const { body } = await ask(path({ before: Math.min(...entries.keys()) }));
    for (const placement of body.placements) {
      if (entries.has(placement.time)) continue;
      const item = entry(placement);
      feed.append(item);
      entries.set(placement.time, { item, placement });
    }
    older.hidden = !body.more || entries.size >= MOST_SHOWN;
  }

  function tell(body) {
    const hours = Math.round(body.kept_s / 360) / 10;
    const text = entries.size ? `${count(entries.size, "placement")} shown; decisions are stored for ${hours} h`
      : "No placements yet. Each decision of kube-scheduler that asks load-watcher is listed here, with its reason and outcome.";
    if (state.textContent !== text) state.textContent = text;
  }

  function off() {
    if (root.firstChild?.id === "placements-off") return;
    root.replaceChildren(el("section.card.stack", { id: "placements-off" },
      el("p", {}, "No scheduling plug-ins are configured."),
      el("p", {}, "This view lists each decision of kube-scheduler: the pod, the chosen node, the reason with numbers, the outcome, and the rejected nodes."),
      el("p", {}, "To enable it, add these lines to the settings, and the extender to the configuration of kube-scheduler:"),
      el("pre", { tabIndex: 0, "aria-label": "Settings" }, SETTINGS),
      el("p.quiet", {}, "If the plug-ins run in a process of their own (load-watcher extender), that process has the placements: load-watcher why, "
        + "and GET /scheduler/placements.")));
  }

  return { title: "Placements", root, update() {}, refresh };
}

function ignored(error) {
  if (!(error instanceof ApiError)) throw error;
}

function isOpen({ outcome }) {
  return outcome === "pending" || outcome === "rejected";
}

function same(one, other) {
  return one.outcome === other.outcome && one.sentence === other.sentence && one.reason === other.reason
    && one.rejected.length === other.rejected.length;
}

function entry(placement) {
  const { time, pod, profile, node, outcome, rejected } = placement;
  const [kind, text] = FATES[outcome] ?? ["quiet", outcome];
  return el("li", {},
    el("time.when", { dateTime: new Date(time * 1000).toISOString(), title: moment(time) }, clock(time)),
    el("div.head", {}, el("a.pod", { href: podHref(pod.namespace, pod.name, time) }, `${pod.namespace}/${pod.name}`),
      el("span", {}, "→ ", node ? nodeLink(node) : NONE), el(`span.fate.${kind}`, {}, text), el("span.quiet", {}, `profile ${profile}`)),
    el("p.what", {}, [placement.reason, placement.sentence].filter(Boolean).join(" – ")),
    rejected.length ? el("p.what.rejections", {}, rejected.map((each) =>
      el("span", {}, `${count(each.count, "node")} rejected by ${each.plugin}: ${each.example}`))) : null);
}
