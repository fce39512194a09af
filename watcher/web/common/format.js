// Formats numbers and times for display.

export const NONE = "–";
const EXACT = 1e15; // integers below this limit (bytes, millicores) are shown exactly

export function percent(value, digits = 1) {
  return value == null ? NONE : `${value.toFixed(digits)} %`;
}

export function seconds(value) {
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 6000) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
}

/** Date and time of unix seconds, in local time. */
export function moment(time) {
  return new Date(time * 1000).toLocaleString([], {
    month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
  });
}

export function bytes(value) {
  if (value == null) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log2(value) / 10));
  const scaled = value / 2 ** (10 * power);
  return `${scaled.toFixed(power === 0 || scaled >= 100 ? 0 : 1)} ${units[power]}`;
}

export function cores(value) {
  return value == null ? NONE : value.toFixed(value < 10 ? 2 : 1);
}

export function count(value, one, many = `${one}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

/** A value of an explanation as text, in the format of `load-watcher score --explain`. */
export function plain(value) {
  if (value == null) return "unknown";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return String(Number.isInteger(value) && Math.abs(value) < EXACT ? value : Number(value.toPrecision(6)));
  if (Array.isArray(value)) return value.length ? value.map(plain).join(", ") : "none";
  if (typeof value === "object") {
    return Object.entries(value).map(([name, each]) => `${name} ${plain(each)}`).join(", ") || "none";
  }
  return String(value);
}

/** Limits found or set by an audit entry of an agent; null means unlimited. */
export function limits(found) {
  return plain(Object.fromEntries(Object.entries(found).map(([name, value]) => [name, value ?? "unlimited"])));
}
