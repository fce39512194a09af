// The trend of a load: its mean over the shortest window minus its mean over the default window, in percentage points.

import { METRICS } from "../load.js";

export const NOTABLE = 5; // points; a smaller difference has no mark
export const STRONG = 10; // points; a smaller difference has no mark on a cell without text
const UP = "▲", DOWN = "▼";

/** Trends by node name, { cpu, memory } in points, from the columns (AVG) of both windows. A node without its own mean
 *  over both windows has none. */
export function trendsOf(short, long, { shortest, longest }) {
  const found = new Map();
  if (!short || !long || shortest === longest) return found;
  for (const [key, type] of Object.entries(METRICS)) {
    const [now, before] = [means(short, type, shortest), means(long, type, longest)];
    for (const [name, value] of now) {
      if (!before.has(name)) continue;
      if (!found.has(name)) found.set(name, {});
      found.get(name)[key] = value - before.get(name);
    }
  }
  return found;
}

function means(columns, type, window) {
  const column = columns.columns.find((each) => each.type === type && each.operator === "AVG" && each.window === window);
  const found = new Map();
  column?.values.forEach((value, row) => { if (value != null) found.set(columns.nodes[row], value); });
  return found;
}

/** The mark of a trend in points: ▲, ▼, or "" if it is small or unknown. */
export function mark(points, least = NOTABLE) {
  if (points == null || Math.abs(points) < least) return "";
  return points > 0 ? UP : DOWN;
}

/** A trend as text: "▲ +7.2", "+0.4", "0.0", or "–" if unknown. */
export function signed(points) {
  if (points == null) return "–";
  const size = Math.abs(points).toFixed(1);
  const text = size === "0.0" ? size : `${points < 0 ? "−" : "+"}${size}`;
  return mark(points) ? `${mark(points)} ${text}` : text;
}
