// Colours for charts: those of the page, and a colour scale for loads that is ordered by brightness as well as by hue.

const LIGHT = [[0, "#e3eefa"], [35, "#a9cdf0"], [60, "#f6cf65"], [80, "#e27a2c"], [100, "#9c1c1c"]];
const DARK = [[0, "#18222e"], [35, "#1f4a78"], [60, "#8a6a12"], [80, "#d0661a"], [100, "#ff5546"]];
const EQUAL_CONTRAST = 0.19; // luminance at which both text colours have about the same contrast
const dark = matchMedia("(prefers-color-scheme: dark)");
const whenChanged = new Set();

dark.addEventListener("change", () => whenChanged.forEach((repaint) => repaint()));

/** Calls `repaint` when the colour scheme changes; returns a function that unregisters it. */
export function onThemeChange(repaint) {
  whenChanged.add(repaint);
  return () => whenChanged.delete(repaint);
}

/** The colour in the custom property `--name` of style.css. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Relative luminance of WCAG 2, from 0 to 1. */
function luminance(rgb) {
  const [red, green, blue] = rgb.map((each) => each / 255).map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function channels(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function scale(stops) {
  return Array.from({ length: 101 }, (_, value) => {
    const above = Math.max(1, stops.findIndex(([at]) => at >= value));
    const [[from, low], [to, high]] = [stops[above - 1], stops[above]];
    const share = (value - from) / (to - from);
    const mixed = channels(low).map((each, i) => Math.round(each + share * (channels(high)[i] - each)));
    return { fill: `rgb(${mixed.join(" ")})`, ink: luminance(mixed) > EQUAL_CONTRAST ? "#11151a" : "#ffffff" };
  });
}

const scales = { light: scale(LIGHT), dark: scale(DARK) };

/** Background colour `fill` for a load in percent, and a readable text colour `ink`. */
export function heat(value) {
  return (dark.matches ? scales.dark : scales.light)[Math.round(Math.min(100, Math.max(0, value)))];
}
