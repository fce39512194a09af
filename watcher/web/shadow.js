// The view of shadow mode: the nodes that other profiles would have selected for bound pods, as `load-watcher shadow`.

import { ApiError, ask } from "./common/api.js";
import { choice, el, notice, numbers, renew, svg, table } from "./common/dom.js";
import { NONE, clock, moment, percent, seconds } from "./common/format.js";
import { linked, term } from "./terms/definitions.js";

const EVERY_MS = 60000; // a report on 20,000 bindings takes half a second of CPU time in the service
const RANGES = [["", "all stored bindings"], ["-1h", "1 h"], ["-6h", "6 h"], ["-24h", "24 h"]];
const SETTINGS = `[scheduler]
shadow = ["spreading"]
spreading = { precise_scores = true, plugins = [ { name = "LoadVariationRiskBalancing", args = { formula = "kep" } } ] }`;

export function shadowView(app) {
  const state = el("p.quiet", { role: "status" }), place = el("div.stack"), tools = el("section.card", { "aria-label": "Which bindings", hidden: true });
  const root = el("div.stack", {}, tools, place);
  const range = () => app.params.get("range") ?? "";
  let asked = -Infinity, round = 0, why = ""; // the reason shown for disabled shadow mode
  tools.append(el("div.tools", {}, choice("Time range", RANGES, range(), (chosen) => {
    app.set({ range: chosen });
    asked = -Infinity;
    refresh().catch(() => {});
  })), state);

  function update() {
    if (app.state.overview && !app.state.overview.scheduler) off("No scheduling plug-ins are configured, so shadow mode is off.", "");
  }

  function off(message, hint) {
    if (why === message) return; // do not replace text that the user may be selecting
    why = message;
    place.replaceChildren(el("section.card.stack", {}, el("p", {}, message), hint ? el("p.quiet", {}, hint) : null,
      el("p", {}, "This view compares the nodes of the pods that any scheduler bound with the nodes that other profiles would have selected: "
        + "how often they differ, and by how many percentage points the load differs, at the binding and 15 minutes later."),
      el("p", {}, "To enable it, add these lines to the settings:"), el("pre", { tabIndex: 0, "aria-label": "Settings" }, SETTINGS),
      el("p.quiet", {}, "If the settings already contain a table [scheduler], add the last two lines to it and send SIGHUP; otherwise "
        + "restart load-watcher. Shadow mode needs read access to nodes and pods, and does not place pods: ", linked("docs/tasks/shadow.md"), " in the repository.")));
  }

  async function refresh() {
    if (!app.state.overview?.scheduler || performance.now() - asked < EVERY_MS) return;
    asked = performance.now();
    const mine = round += 1;
    if (!place.firstChild) place.append(notice("loading…"));
    try {
      const { shadow } = (await ask("scheduler/plugins")).body;
      if (!shadow.on && shadow.hint.includes("[scheduler] shadow")) { // without a request that fails
        tools.hidden = true;
        off("shadow mode is off", shadow.hint);
        return;
      }
      const { body, at } = await ask(`scheduler/shadow${range() ? `?from=${encodeURIComponent(range())}` : ""}`);
      if (mine !== round) return; // another range was selected in the meantime
      why = "";
      tools.hidden = false;
      state.textContent = `as of ${clock(at / 1000)}, updated every minute`;
      renew(place, ...report(body));
    } catch (error) {
      if (mine !== round) return;
      if (error.code !== "not_found") asked = -Infinity; // requested again in the next round
      if (!(error instanceof ApiError) || !error.status) throw error; // no response: keep the last report
      tools.hidden = true;
      why = "";
      place.replaceChildren(el("div.card", { role: "alert" }, el("p.bad", {}, error.message), el("p.quiet", {}, error.hint)));
    }
  }

  return { title: "Shadow", root, update, refresh };
}

// --- a report ----------------------------------------------------------------------------------------------------

function report(document) {
  if (document.first == null) {
    return [notice("no bindings observed yet", "Pods bound by any scheduler are shown here shortly after their binding.")];
  }
  return [
    totals(document),
    document.truncated ? el("p.warn", {}, "older bindings are omitted; select a shorter time range for a complete report") : null,
    el("section.card", {}, el("h2", {}, "Placement by each profile"), choices(document), notices(document)),
    el("section.card", {}, el("h2", {}, `Load of the other node minus load of the actual node, mean of ${document.window} in percentage points`),
      differences(document), smallPrint(document),
      el("p.fine", {}, "Terms: ", term("tied"), ", ", term("none"), ", ", term("estimated"), ", ", term("profile"), ".")),
    el("section.card", {}, el("h2", {}, "Excluded pods"), table("Excluded pods", [["Reason", "long"], ["Pods", "number"]],
      document.left_out.map((each) => [each.message, whole(each.count)]), { empty: "none" })),
  ].filter(Boolean);
}

function totals({ bindings, first, last, candidates, left_out: leftOut, source, window }) {
  return numbers([
    ["Pods bound", [whole(bindings), `${moment(first)} to ${moment(last)}`]],
    ["Candidates sent by kube-scheduler", [whole(candidates.asked), `estimated for ${whole(candidates.estimated)}`]],
    ["Excluded pods", whole(leftOut.reduce((sum, each) => sum + each.count, 0))],
    ["Load from", [source || NONE, `mean of ${window}`]],
  ]);
}

function choices({ profiles }) {
  const rows = profiles.map((each) => [
    each.profile, ...["bindings", "same", "tied", "other", "none"].map((key) => whole(each[key])), share(each.other_share),
  ]);
  return table("Placement by each profile", [["Profile"], ["Pods", "number"], ["Same node", "number"], ["Equal score", "number"],
    ["Other node", "number"], ["No node", "number"], ["Other node, share"]], rows, { empty: "no shadow profiles" });
}

/** The notices about profiles, and the ratio that decides whether they apply. */
function notices({ notices: of, requests_to_usage: ratios }) {
  const warnings = Object.entries(of).flatMap(([profile, texts]) => texts.map((text) => el("p.warn", {}, `${profile}: `, linked(text))));
  const parts = Object.entries(ratios).map(([resource, ratio]) => `${ratio.toFixed(2)} times their ${resource} usage`);
  return warnings.length ? el("div.fine", {}, warnings, parts.length ? el("p", {}, `The pods of this cluster request ${parts.join(", ")}.`) : null) : null;
}

/** A share with its confidence interval, as text and as a dot on a line from 0 to 100 %. */
function share({ value, low, high }) {
  if (value == null) return NONE;
  const [at, from, to] = [value, low, high].map((each) => 4 + 152 * each);
  const picture = svg("svg", { viewBox: "0 0 160 14", width: 160, height: 14, "aria-hidden": "true", class: "interval" },
    svg("line", { x1: 4, x2: 156, y1: 7, y2: 7, class: "axis" }),
    svg("line", { x1: from, x2: to, y1: 7, y2: 7, stroke: "currentColor", "stroke-width": 3, "stroke-opacity": 0.45 }),
    svg("circle", { cx: at, cy: 7, r: 4, fill: "currentColor" }));
  const said = (each) => percent(100 * each, 0);
  return el("span.share", {}, picture, el("span", {}, `${said(value)} (${said(low)} to ${said(high)})`));
}

function differences({ profiles, later_s: laterS }) {
  const rows = profiles.flatMap((each) => Object.entries(each.difference).map(([resource, { now, later }]) =>
    [each.profile, resource, interval(now), whole(now.count), interval(later), whole(later.count)]));
  return table("Load difference to the other node", [["Profile"], ["Resource"], ["At binding", "number"], ["Pods", "number"],
    [`${seconds(laterS)} later`, "number"], ["Pods", "number"]], rows, { empty: "no shadow profiles" });
}

function interval({ mean, low, high }) {
  if (mean == null) return NONE;
  return `${signed(mean)} (${low == null ? "?" : `${signed(low)} to ${signed(high)}`})`;
}

function smallPrint({ profiles, later_s: laterS, confidence }) {
  const later = seconds(laterS);
  const said = profiles.flatMap(({ profile, difference, pod_cpu: podCpu, with_other_settings: otherwise }) => {
    const { pending, unknown } = difference.CPU.later;
    return [
      podCpu == null ? "" : `${profile}: ${later} later the actual node also runs the pod, which requests ${podCpu.toFixed(1)} % of its CPU`,
      pending || unknown ? `${profile}: pods whose later load is pending: ${whole(pending)}; unknown: ${whole(unknown)}` : "",
      otherwise ? `${profile}: ${whole(otherwise)} pods excluded: evaluated with different settings` : "",
    ].filter(Boolean);
  });
  const brackets = `in parentheses: ${percent(100 * confidence, 0)} confidence interval; (?): too few 15-minute blocks`;
  return el("div.fine", {}, [brackets, ...said].map((each) => el("p", {}, each)));
}

function whole(value) {
  return value.toLocaleString("en");
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
}
