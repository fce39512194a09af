// The page: routing between views, polling of the service, and the status line with the age of the data.
//
// A view is created for an address (#/name/argument?parameters) and is used until the name or argument changes:
//   { title, root, update(), refresh()?, end()?, wants? }; update() renders app.state, refresh() requests data of this view
//   only, and `wants` is the value of ?want= of the overview.
// Requests that are expected to fail are not sent: the overview says what is there.

import { ApiError, ask, useToken, whenUnauthorized } from "./common/api.js";
import { el, notice, styles } from "./common/dom.js";
import { fleetView } from "./fleet/fleet.js";
import { seconds } from "./common/format.js";
import { nodesOf } from "./load.js";
import { worst } from "./problems/problems.js";

const EVERY_MS = 5000;
const NO_COLUMNS = ["no_metrics", "stale", "partial_outage"]; // errors of the overview that the nodes have, too
const SIMULATED = {
  Demo: "This is a simulated cluster, not a real one.",
  Replay: "This is a replay of a recorded trace, not the current state of a cluster.",
};
// Views other than the first one are loaded on demand. `css` is the style sheet of a view, a file in web/.
const VIEWS = {
  fleet: { label: "Fleet", make: fleetView },
  risk: { label: "Risk", load: async () => (await import("./risk/risk.js")).riskView },
  placements: { label: "Placements", css: "placements/placements.css", load: async () => (await import("./placements/list.js")).placementsView },
  score: { label: "Score", css: "score/score.css", load: async () => (await import("./score/score.js")).scoreView },
  shadow: { label: "Shadow", load: async () => (await import("./shadow.js")).shadowView },
  findings: { label: "Findings", load: async () => (await import("./problems/findings.js")).findingsView },
  agents: { label: "Agents", wanted: (overview) => overview?.agents, load: async () => (await import("./agents/agents.js")).agentsView },
  node: { tab: "fleet", css: "node/node.css", load: async () => (await import("./node/node.js")).nodeView },
  terms: { load: async () => (await import("./terms/definitions.js")).termsView },
};

const byId = (id) => document.getElementById(id);
let view = null;
let shown = ""; // name and argument of the view
let timer = 0;
let bare = location.hash === ""; // until the nodes are known

const app = {
  state: { overview: null, overviewAt: 0, columns: null, columnsError: null, silent: null, problems: null, nodes: [], answered: true, why: null },
  params: new URLSearchParams(),
  argument: "",
  fleet: new URLSearchParams(), // parameters of the fleet view when it was left
  listed: [], // names of its nodes in the order in which it showed them

  /** Changes parameters in the address of this view; null or "" removes a parameter. */
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value == null || value === "") app.params.delete(name);
      else app.params.set(name, value);
    }
    const query = app.params.toString();
    history.replaceState(null, "", `#/${shown}${query ? `?${query}` : ""}`);
    if ("window" in changes) poll();
    else view.update();
  },

  get window() {
    return app.params.get("window") ?? app.state.overview?.default_window ?? "15m";
  },
};

// --- addresses ---------------------------------------------------------------------------------------------------

async function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const known = Object.hasOwn(VIEWS, name) ? name : "fleet";
  const argument = rest.map(decoded).join("/");
  const kept = app.params.get("window");
  app.params = new URLSearchParams(query ?? "");
  if (kept && !app.params.has("window")) app.params.set("window", kept);
  app.argument = argument;
  if (known === "fleet") app.fleet = app.params;
  const next = argument ? `${known}/${rest.join("/")}` : known;
  for (const link of byId("views").querySelectorAll("a")) {
    if (link.dataset.view === (VIEWS[known].tab ?? known)) {
      link.setAttribute("aria-current", "page");
      reveal(link);
    } else link.removeAttribute("aria-current");
  }
  await show(known, next);
}

function reveal(link) {
  link.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // the address contains a literal %
  }
}

async function show(name, next) {
  const first = shown === "";
  shown = next;
  const { css, load } = VIEWS[name];
  const [make] = await Promise.all([VIEWS[name].make ?? load(), css ? styles(css) : null]);
  if (shown !== next) return; // another view was opened in the meantime
  view?.end?.();
  view = make(app);
  byId("main").replaceChildren(view.root);
  document.title = `${view.title} · load-watcher`;
  view.update();
  if (!first) byId("main").focus();
  poll();
}

function navigation() {
  byId("views").replaceChildren(...Object.entries(VIEWS).filter(([, each]) => each.label).map(([name, { label, wanted }]) => {
    const link = el("a", { href: `#/${name}`, hidden: Boolean(wanted) }, label);
    link.dataset.view = name;
    return link;
  }));
}

// --- polling -----------------------------------------------------------------------------------------------------

let polling = null;
let again = false;

/** Runs one round of requests; a call during a round starts another round after it. */
function poll() {
  again = true;
  polling ??= (async () => {
    try {
      while (again) {
        again = false;
        clearTimeout(timer);
        await round();
      }
    } finally { // schedule the next round even if a view fails
      timer = setTimeout(() => { if (!document.hidden) poll(); }, EVERY_MS);
      polling = null;
    }
  })();
}

async function round() {
  const { state } = app, first = !state.overview;
  if (first) await askOverview(); // which says whether there are nodes to request
  const lacking = !state.overview || state.overview.error; // as of the last round
  if (state.overview) await Promise.all([first ? null : askOverview(), lacking ? null : askColumns(), lacking ? null : keep("silent"), keep("problems")]);
  if (lacking && state.answered) await askAfterError();
  state.nodes = nodesOf(state.columns, state.overview, state.silent);
  openOnlyNode();
  showState();
  view?.update();
  try {
    if (state.answered) await view?.refresh?.(); // otherwise, each of its requests would fail, too
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

async function askOverview() {
  const { state } = app;
  try {
    const { body, at } = await ask(`api/v1/overview${view?.wants ? `?want=${view.wants}` : ""}`);
    Object.assign(state, { overview: body, overviewAt: at, answered: true, why: null });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    Object.assign(state, { answered: false, why: error });
  }
}

/** Requests the nodes if the overview says that they are there now; otherwise its error is that of the nodes. */
async function askAfterError() {
  const { state } = app, { error } = state.overview;
  if (!NO_COLUMNS.includes(error?.code)) await askColumns();
  else state.columnsError = new ApiError(503, error.code, error.message, error.hint);
  if (error?.code === "no_metrics") Object.assign(state, { columns: null, silent: null });
  else await keep("silent");
}

async function askColumns() {
  const { state } = app;
  const wanted = app.params.get("window");
  try {
    const { body } = await ask(`api/v1/columns?type=CPU&type=Memory${wanted ? `&window=${encodeURIComponent(wanted)}` : ""}`);
    Object.assign(state, { columns: body, columnsError: null });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    state.columnsError = error;
    if (error.code === "no_metrics" || error.status === 400) state.columns = null;
  }
}

/** Asks for a document of that name. Keeps the previous one on an error; the overview shows the problem. */
async function keep(name) {
  try {
    app.state[name] = (await ask(`api/v1/${name}`)).body;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.code === "no_metrics") app.state[name] = null;
  }
}

/** Opens the page of the node if there is only one, once, unless the address names a view. */
function openOnlyNode() {
  const [only, other] = app.state.nodes;
  if (!only) return;
  if (bare && !other && location.hash === "") location.replace(`#/node/${encodeURIComponent(only.name)}`);
  bare = false;
}

whenUnauthorized((hadToken) => {
  byId("token-wrong").textContent = hadToken ? "invalid token" : "";
  byId("token-form").hidden = false;
});

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token").value = "";
  byId("token-form").hidden = true;
  poll();
});

// --- status line -------------------------------------------------------------------------------------------------

const WORDS = {
  ready: ["ready", "good"], warming_up: ["collecting the first windows", "warn"], no_metrics: ["no metrics yet", "warn"],
  stale: ["the newest sample is too old", "bad"], partial_outage: ["partial outage of the monitoring", "bad"],
};

function showState() {
  const { overview, answered, why, columnsError, columns } = app.state;
  const [text, kind] = inWords(app.state);
  if (byId("state-text").textContent !== text) byId("state-text").textContent = text;
  byId("state").className = kind;
  const simulated = SIMULATED[overview?.snapshot?.source] ?? "";
  setBanner("simulated", simulated);
  const passing = !why && overview?.status === "warming_up";
  const error = passing ? { message: overview.error.hint } : why ?? overview?.error ?? columnsError;
  byId("trouble").classList.toggle("passing", passing);
  setBanner("trouble", error && error.status !== 401 ? [error.message, error.hint].filter(Boolean).join(" – ")
    : overview?.provider.ok === false ? `the provider does not respond: ${overview.provider.reason}` : "");
  byId("main").classList.toggle("old", Boolean((!answered && overview) || (columnsError && columns)));
  for (const link of byId("views").querySelectorAll("a")) {
    const { wanted } = VIEWS[link.dataset.view];
    const hidden = Boolean(wanted) && !wanted(overview);
    if (link.hidden === hidden) continue;
    link.hidden = hidden;
    if (link.hasAttribute("aria-current")) reveal(link);
  }
  byId("version").textContent = overview ? `load-watcher ${overview.version}` : "";
  showAge();
}

function inWords({ overview, answered, why, problems }) {
  if (!answered) return [why.status === 401 ? "token required" : why.status ? "request rejected" : "no response", "bad"];
  if (overview.status === "ready" && overview.provider.ok === false) return ["ready, but the provider does not respond", "warn"];
  return (overview.status === "ready" && worst(problems)) || (WORDS[overview.status] ?? [overview.status, "bad"]);
}

function setBanner(id, text) {
  const banner = byId(id);
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

function showAge() {
  const { overview, overviewAt } = app.state;
  const snapshot = overview?.snapshot;
  if (!snapshot) {
    byId("age").textContent = "";
    return;
  }
  const age = snapshot.age_s + (Date.now() - overviewAt) / 1000;
  byId("age").textContent = `${snapshot.source} · newest sample ${seconds(age)} old`;
}

/** The element that a view shows instead of an empty list of nodes; null if nodes are available. */
app.nothing = () => {
  const { nodes, columnsError, overview, why } = app.state;
  if (nodes.length) return null;
  const error = columnsError ?? why;
  if (error) return notice(`Nothing to show: ${error.message}`, error.hint);
  return overview ? notice("No nodes yet.", "Nodes are listed after the first samples.") : notice("loading…");
};

setInterval(showAge, 1000);
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
window.addEventListener("hashchange", route);
navigation();
route();
