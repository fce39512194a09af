// The load of the whole fleet over the stored time, as a line for CPU and one for memory.

import { el, svg } from "../common/dom.js";
import { clock, count, moment, percent, seconds } from "../common/format.js";
import { missing, term } from "../terms/definitions.js";

const HEIGHT = 120, LEFT = 44, RIGHT = 12, TOP = 8, BOTTOM = 20; // pixels
const GAP_STEPS = 2.5; // values further apart are not connected
const LINES = [["cpu", "CPU", 1], ["memory", "Memory", 2]];
const SETTINGS = `[store]
keep = ["CPU", "Memory"]
retention = "24h"`;
const SHOWS = "The mean CPU and memory load of the whole fleet over the last day, from the stored windows";

/** The card of a document of /api/v1/trend, `room` pixels wide. */
export function overTime(trend, room) {
  if (trend.time.length < 2) return emptyOf(trend);
  const { time } = trend, first = time[0], last = time.at(-1), width = Math.max(240, room - 34);
  const highest = Math.max(...LINES.flatMap(([key]) => trend[key]).filter((value) => value != null), 1);
  const most = Math.min(100, Math.ceil((highest * 1.1) / 20) * 20);
  const x = (at) => LEFT + ((at - first) / (last - first)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - Math.min(1, value / most)) * (HEIGHT - TOP - BOTTOM);
  const words = el("p.chart-legend", {}, ...wordsOf(trend, time.length - 1));
  const mark = svg("line", { y1: TOP, y2: HEIGHT - BOTTOM, class: "axis", visibility: "hidden" });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width: "100%", role: "img", "aria-label": spoken(trend) },
    ...[0, most / 2, most].flatMap((value) => [svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "axis" }),
      label(LEFT - 6, y(value) + 4, percent(value, 0), "end")]),
    ...hours(first, last, width).map((at) => label(x(at), HEIGHT - 4, clock(at).slice(0, 5), "middle")),
    mark, ...LINES.map(([key, , series]) => svg("path", { d: path(trend, key, x, y), class: `trend-line series-${series}` })));
  const point = (event) => {
    const box = picture.getBoundingClientRect(), at = first + (((event.clientX - box.left) / box.width * width - LEFT) / (width - LEFT - RIGHT)) * (last - first);
    const nearest = time.reduce((best, each, i) => (Math.abs(each - at) < Math.abs(time[best] - at) ? i : best), 0);
    for (const end of ["x1", "x2"]) mark.setAttribute(end, x(time[nearest]));
    mark.setAttribute("visibility", "visible");
    words.replaceChildren(...wordsOf(trend, nearest));
  };
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    words.replaceChildren(...wordsOf(trend, time.length - 1));
  });
  return el("section.card.over-time", {}, el("h2", {}, `Load of the fleet, last ${seconds(last - first)}`), picture, words,
    el("p.quiet.fine", {}, "Mean of the ", term("window", `${trend.window} windows`), trend.weighted
      ? " of all nodes, weighted by their capacity." : " of all nodes. Their capacity is unknown, so that they count equally."));
}

function emptyOf({ reason, time, step }) {
  if (time.length) return el("section.card", {}, el("h2", {}, "Load of the fleet"), el("p.quiet", {}, `${SHOWS}, is shown here from the second value on, in at most ${seconds(step)}.`));
  if (reason.includes("store.keep")) return missing(`${SHOWS}, would be shown here.`, SETTINGS, { page: "reference/store.md" });
  return el("section.card", {}, el("h2", {}, "Load of the fleet"), el("p.quiet", {}, `${SHOWS}, is shown here: ${reason}.`));
}

/** The values at an index below the picture. */
function wordsOf(trend, at) {
  return [el("span.quiet", {}, at === trend.time.length - 1 ? `newest, ${clock(trend.time[at])}` : moment(trend.time[at])),
    ...LINES.map(([key, name, series]) => el("span", {}, el(`span.key.series-${series}`, { "aria-hidden": "true" }), `${name} `, el("b", {}, percent(trend[key][at])))),
    el("span.quiet", {}, count(trend.nodes[at], "node"))];
}

function spoken(trend) {
  const parts = LINES.map(([key, name]) => {
    const known = trend[key].filter((value) => value != null);
    return known.length ? `${name} between ${percent(Math.min(...known))} and ${percent(Math.max(...known))}, now ${percent(known.at(-1))}` : `${name} unknown`;
  });
  return `Load of the fleet from ${moment(trend.time[0])}: ${parts.join("; ")}`;
}

/** The line of a metric; a gap in time, or a missing value, interrupts it. */
function path(trend, key, x, y) {
  let before = null;
  return trend.time.map((time, i) => {
    const value = trend[key][i];
    if (value == null) {
      before = null;
      return "";
    }
    const command = before == null || time - before > GAP_STEPS * trend.step ? "M" : "L";
    before = time;
    return `${command}${x(time).toFixed(1)},${y(value).toFixed(1)}`;
  }).join("");
}

/** Times of the axis: full hours of local time, about one per 90 pixels. */
function hours(first, last, width) {
  const step = [1, 2, 3, 6, 12, 24].find((each) => (last - first) / 3600 / each <= width / 90) ?? 24;
  const found = [], at = new Date(first * 1000);
  at.setMinutes(0, 0, 0);
  for (; at.getTime() / 1000 <= last; at.setHours(at.getHours() + 1)) {
    if (at.getTime() / 1000 >= first && at.getHours() % step === 0) found.push(at.getTime() / 1000);
  }
  return found.length ? found : [first, last];
}

function label(x, y, content, anchor) {
  const made = svg("text", { x, y, "text-anchor": anchor });
  made.textContent = content;
  return made;
}
