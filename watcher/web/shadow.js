// What other profiles would have done with the pods that were bound, in the words of `load-watcher shadow`.

import { ApiError, ask } from "./api.js";
import { choice, el, numbers, renew, svg, table, told } from "./dom.js";
import { NONE, clock, moment, percent, seconds } from "./format.js";

const EVERY_MS = 60000; // a report on 20,000 bindings is half a second of a thread, and changes slowly
const RANGES = [["", "all that is kept"], ["-1h", "1 h"], ["-6h", "6 h"], ["-24h", "24 h"]];
const SETTINGS = `[scheduler]
shadow = ["spreading"]
spreading = { plugins = [ { name = "LoadVariationRiskBalancing" } ] }`;

export function shadowView(app) {
  const state = el("p.quiet", { role: "status" }), place = el("div.stack"), tools = el("section.card", { "aria-label": "Which bindings", hidden: true });
  const root = el("div.stack", {}, tools, place);
  const range = () => app.params.get("range") ?? "";
  let asked = -Infinity, round = 0, why = ""; // why it is off, once that is shown
  tools.append(el("div.tools", {}, choice("Bindings of the last", RANGES, range(), (chosen) => {
    app.set({ range: chosen });
    asked = -Infinity;
    refresh().catch(() => {});
  })), state);

  function update() {
    if (app.state.overview && !app.state.overview.scheduler) off("No scheduling plug-ins are configured, so no other profile is asked.", "");
  }

  function off(message, hint) {
    if (why === message) return; // somebody may be copying the lines
    why = message;
    place.replaceChildren(el("section.card.stack", {}, el("p", {}, message), hint ? el("p.quiet", {}, hint) : null,
      el("p", {}, "These lines in the settings switch it on:"), el("pre", { tabIndex: 0, "aria-label": "Settings" }, SETTINGS),
      el("p.quiet", {}, "Where there is a table [scheduler], the last two belong into it; SIGHUP takes them over. Else start load-watcher "
        + "anew. It needs to see nodes and pods, and places nothing: docs/shadow.md.")));
  }

  async function refresh() {
    if (!app.state.overview?.scheduler || performance.now() - asked < EVERY_MS) return;
    asked = performance.now();
    const mine = round += 1;
    if (!place.firstChild) place.append(told("asking…"));
    try {
      const { body, at } = await ask(`scheduler/shadow${range() ? `?from=${encodeURIComponent(range())}` : ""}`);
      if (mine !== round) return; // another range was chosen meanwhile
      why = "";
      tools.hidden = false;
      state.textContent = `as of ${clock(at / 1000)}, asked again each minute`;
      renew(place, ...report(body));
    } catch (error) {
      if (mine !== round) return;
      if (error.code !== "not_found") asked = -Infinity; // asked again with the next round
      if (!(error instanceof ApiError) || !error.status) throw error; // no answer: the last one stays
      tools.hidden = true;
      // the other reason for not being there is that what it sees is not kept, as the hint says
      if (error.code === "not_found" && error.hint.includes("[scheduler] shadow")) off(error.message, error.hint);
      else {
        why = "";
        place.replaceChildren(el("div.card", { role: "alert" }, el("p.bad", {}, error.message), el("p.quiet", {}, error.hint)));
      }
    }
  }

  return { title: "Shadow", root, update, refresh };
}

// --- a report ----------------------------------------------------------------------------------------------------

function report(document) {
  if (document.first == null) {
    return [told("no binding was seen yet", "Each pod that is bound from now on, by whichever scheduler, is told of here a moment later.")];
  }
  return [
    totals(document),
    document.truncated ? el("p.warn", {}, "there are more, and older ones: a shorter time tells of all of them") : null,
    el("section.card", {}, el("h2", {}, "Where they would have gone"), choices(document)),
    el("section.card", {}, el("h2", {}, `How much busier the other node was, mean of ${document.window} in percentage points`),
      differences(document), smallPrint(document)),
    el("section.card", {}, el("h2", {}, "Left out"), table("Left out", [["Why", "long"], ["Pods", "number"]],
      document.left_out.map((each) => [each.message, whole(each.count)]), { empty: "nothing was left out" })),
  ].filter(Boolean);
}

function totals({ bindings, first, last, candidates, left_out: leftOut, source, window }) {
  return numbers([
    ["Pods bound", [whole(bindings), `${moment(first)} to ${moment(last)}`]],
    ["kube-scheduler asked us about", [whole(candidates.asked), `the nodes of ${whole(candidates.estimated)} are estimated`]],
    ["Left out", whole(leftOut.reduce((sum, each) => sum + each.count, 0))],
    ["Load from", [source || NONE, `mean of ${window}`]],
  ]);
}

function choices({ profiles }) {
  const rows = profiles.map((each) => [
    each.profile, ...["bindings", "same", "tied", "other", "none"].map((key) => whole(each[key])), share(each.other_share),
  ]);
  return table("Where they would have gone", [["Profile"], ["Pods", "number"], ["Same node", "number"], ["As good", "number"],
    ["Another", "number"], ["None fits", "number"], ["Another, share"]], rows, { empty: "no profile is asked" });
}

/** In words, and as a dot with its interval on a line from 0 to 100 %. */
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
  return table("How much busier the other node was", [["Profile"], ["Of"], ["Then", "number"], ["Pods", "number"],
    [`${seconds(laterS)} later`, "number"], ["Pods", "number"]], rows, { empty: "no profile is asked" });
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
      podCpu == null ? "" : `${profile}: ${later} later the node that it was has the pod, which requests ${podCpu.toFixed(1)} % of its CPU`,
      pending || unknown ? `${profile}: of ${whole(pending)} that is still to come, of ${whole(unknown)} it is not known` : "",
      otherwise ? `${profile}: ${whole(otherwise)} were asked about with other settings` : "",
    ].filter(Boolean);
  });
  const brackets = `in brackets: ${percent(100 * confidence, 0)} confidence; (?): too few quarter hours to say`;
  return el("div.fine", {}, [brackets, ...said].map((each) => el("p", {}, each)));
}

function whole(value) {
  return value.toLocaleString("en");
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;
}
