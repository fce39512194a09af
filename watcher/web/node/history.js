// Charts of the stored windows of a node, with the bounds of its forecasts. The chart library is loaded on first use.

import { el, styles } from "../common/dom.js";
import { clock, moment, percent } from "../common/format.js";
import { colour, onThemeChange } from "../common/theme.js";

const CHARTS = [["CPU", "AVG", "CPU, mean by window"], ["Memory", "AVG", "Memory, mean by window"], ["CPU", "STD", "CPU, deviation by window"], ["Memory", "STD", "Memory, deviation by window"]];
/** Names of the metrics of pressure, and their texts. */
const PRESSURES = [["cpu_some", "CPU"], ["memory_some", "memory"], ["io_some", "disks"], ["memory_full", "memory, all tasks"], ["io_full", "disks, all tasks"]]
  .map(([part, text]) => [`node_pressure_${part}_avg10`, text]);
/** Height of a chart, less where there is one per row. */
const height = (width) => (width < 420 ? 110 : 170);
const DASHES = [[], [8, 4], [2, 3]];

/** Renders into `place`, with the charts of deviations into `more`. */
export class HistoryCharts {
  constructor(place, more) {
    this.places = [place, place, more, more];
    this.charts = [];
    this.legends = [];
    this.sentences = [];
    this.pressure = el("p.quiet");
    this.bounds = [];
    this.range = "";
    this.forget = onThemeChange(() => this.redraw());
    this.sizes = new ResizeObserver(() => this.fit());
    for (const each of [place, more]) this.sizes.observe(each);
  }

  /** `answers` are the documents of /api/v1/history, one per window; `forecasts` are those of /api/v1/forecasts,
   *  `pressure` are metrics of /watcher. */
  async show(answers, windows, forecasts = [], pressure = []) {
    const { default: UPlot } = await import("../vendor/uPlot.esm.js");
    styles("vendor/uPlot.min.css");
    this.last = [answers, windows, forecasts, pressure];
    this.bounds = CHARTS.map(([type, operator]) => (operator === "AVG" && forecasts.find((each) => each.type === type)) || null);
    const data = CHARTS.map(([type, operator]) => aligned(answers, type, operator));
    this.shown = [answers[0].start, answers[0].end];
    if (this.range === windows.join() && this.places[0].contains(this.charts[0]?.root ?? null)) {
      this.charts.forEach((chart, i) => chart.setData(data[i]));
    } else {
      this.clear();
      this.range = windows.join();
      const cards = CHARTS.map(([, , title]) => el("div.chart", {}, el("h3", {}, title)));
      for (const place of new Set(this.places)) place.replaceChildren(...cards.filter((_, i) => this.places[i] === place));
      this.places[0].append(this.pressure);
      this.legends = cards.map(() => el("p.chart-legend"));
      this.charts = data.map((each, i) => new UPlot(this.options(cards[i].clientWidth || 300, windows, i), each, cards[i]));
      this.sentences = cards.map(() => el("div.chart-forecast"));
      cards.forEach((card, i) => card.append(this.legends[i], this.sentences[i]));
    }
    data.forEach((each, i) => this.write(i, each, windows, null));
    this.pressure.replaceChildren(...pressureText(pressure));
    this.sentences.forEach((each, i) => each.replaceChildren(...forecastText(this.bounds[i])));
  }

  options(width, windows, chart) {
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    return {
      width, height: height(width), legend: { show: false }, cursor: { y: false, points: { size: 7 } },
      scales: { x: { range: () => this.shown }, y: { range: (_, low, high) => [0, Math.max(10, (Math.max(high ?? 10, this.bounds[chart]?.bound ?? 0)) * 1.1)] } },
      axes: [{ ...axis, size: 32, values: (_, times) => times.map((time) => clock(time).slice(0, 5)) },
        { ...axis, values: (_, values) => values.map((value) => `${value} %`), size: 52 }],
      series: [{}, ...windows.map((window, i) => (
        { label: window, stroke: colour(`series-${(i % 3) + 1}`), width: 2, dash: DASHES[i % 3], spanGaps: false }))],
      hooks: { drawClear: [(plot) => paintBound(plot, this.bounds[chart])], setCursor: [(plot) => this.write(chart, plot.data, windows, plot.cursor.idx ?? null)] },
    };
  }

  /** Writes the values at the pointer below a chart; without a pointer, the newest value of each window. */
  write(chart, [times, ...series], windows, index) {
    const legend = this.legends[chart];
    if (!legend) return;
    legend.classList.toggle("quiet", !times.length);
    if (!times.length) {
      legend.replaceChildren("No stored data in this time range.");
      return;
    }
    const at = index ?? times.length - 1;
    const entries = windows.map((window, i) => {
      const value = index == null ? series[i].findLast((each) => each != null) : series[i][index];
      return el("span", {}, key(i), `${window} `, el("b", {}, percent(value)));
    });
    legend.replaceChildren(el("span.quiet", {}, index == null ? `newest, ${clock(times[at])}` : moment(times[at])), ...entries);
  }

  redraw() {
    this.range = "";
    if (this.last) this.show(...this.last);
  }

  fit() {
    for (const chart of this.charts) {
      const width = chart.root.parentElement.clientWidth;
      if (width && width !== chart.width) chart.setSize({ width, height: height(width) });
    }
  }

  clear() {
    for (const chart of this.charts) chart.destroy();
    this.charts = [];
  }

  end() {
    this.forget();
    this.sizes.disconnect();
    this.clear();
  }
}

/** Paints the band from 0 to the bound of a forecast, and the bound as a dashed line, from the time of its issue on. */
function paintBound(plot, forecast) {
  if (forecast?.bound == null) return;
  const { ctx, bbox } = plot, y = Math.round(plot.valToPos(forecast.bound, "y", true));
  const right = bbox.left + bbox.width, narrow = 20 * devicePixelRatio;
  const left = Math.max(bbox.left, Math.min(right - narrow, plot.valToPos(forecast.issued, "x", true)));
  ctx.save();
  ctx.globalAlpha = 0.12;
  ctx.fillStyle = ctx.strokeStyle = colour("bound");
  ctx.fillRect(left, y, right - left, bbox.top + bbox.height - y);
  ctx.globalAlpha = 1;
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.setLineDash([10 * devicePixelRatio, 6 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(left, y);
  ctx.lineTo(right, y);
  ctx.stroke();
  ctx.restore();
}

/** The sentence of a forecast below its chart. */
function forecastText(forecast) {
  if (!forecast) return [];
  const within = `within ${forecast.horizon.slice(0, -1)} h`;
  return [el("span.forecast", {}, forecast.bound == null ? null : el("span.key.bound", { "aria-hidden": "true" }), `forecast ${within}: ${forecast.text}`)];
}

/** The pressure of the node, where its metrics are fetched. */
function pressureText(metrics) {
  const known = PRESSURES.map(([name, text]) => [text, metrics.find((each) => each.name === name)]).filter(([, metric]) => metric);
  return known.length ? [`Pressure, the share of the time in which tasks wait: ${known.map(([text, { value, rollup }]) => `${text} ${percent(value)} (${rollup})`).join(", ")}`] : [];
}

/** The line of a series as in the chart. */
function key(index) {
  return el(`span.key.series-${(index % 3) + 1}`, { "aria-hidden": "true" });
}

/** [times, values of each response…] for a chart; null where a response has no value. */
function aligned(answers, type, operator) {
  const series = answers.map((answer) => new Map(answer.series
    .filter((each) => each.type === type && each.operator === operator).flatMap((each) => each.points)));
  const times = [...new Set(series.flatMap((each) => [...each.keys()]))].sort((a, b) => a - b);
  return [times, ...series.map((each) => times.map((time) => each.get(time) ?? null))];
}
