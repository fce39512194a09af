// Painter for canvas-list.js: a scatter plot with lines and two linear axes. A pointer hits the nearest dot.

import { colour } from "../common/theme.js";

const LEFT = 52, RIGHT = 16, TOP = 14, BOTTOM = 42;
const DOT = 5;
const NEAR = 14; // maximum distance of a hit in pixels

export class Plot {
  /** `x` and `y` are { label, from, to } and may be changed before each draw. `dot(item)` returns { x, y, fill, shape }. */
  constructor({ x, y, dot, height = 420 }) {
    Object.assign(this, { x, y, dot, height, lines: [], bands: [], items: [], width: 0 });
  }

  layout(width, items) {
    Object.assign(this, { width, items });
    this.dots = items.map((item) => this.dot(item));
    return this.height;
  }

  across(value) {
    return LEFT + ((value - this.x.from) / (this.x.to - this.x.from)) * (this.width - LEFT - RIGHT);
  }

  up(value) {
    return this.height - BOTTOM - ((value - this.y.from) / (this.y.to - this.y.from)) * (this.height - TOP - BOTTOM);
  }

  paint(context, active) {
    this.frame(context);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP - 6, this.width - LEFT - RIGHT + 6, this.height - TOP - BOTTOM + 12);
    context.clip();
    for (const line of this.lines) this.line(context, line);
    const radius = this.items.length > 1000 ? 3 : DOT;
    for (const dot of this.dots) this.mark(context, dot, radius);
    context.restore();
    if (active < 0) return;
    const { x, y } = this.place(active);
    context.beginPath();
    context.arc(x, y, radius + 5, 0, 2 * Math.PI);
    context.strokeStyle = colour("ink");
    context.lineWidth = 2.5;
    context.stroke();
  }

  frame(context) {
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    for (const value of ticks(this.x)) {
      const at = Math.round(this.across(value)) + 0.5;
      rule(context, at, TOP, at, this.height - BOTTOM);
      write(context, String(value), at, this.height - BOTTOM + 8, "center", "top");
    }
    for (const value of ticks(this.y)) {
      const at = Math.round(this.up(value)) + 0.5;
      rule(context, LEFT, at, this.width - RIGHT, at);
      write(context, String(value), LEFT - 8, at, "right", "middle");
    }
    write(context, this.x.label, (LEFT + this.width - RIGHT) / 2, this.height - 4, "center", "bottom");
    context.save();
    context.translate(12, (TOP + this.height - BOTTOM) / 2);
    context.rotate(-Math.PI / 2);
    write(context, this.y.label, 0, 0, "center", "middle");
    context.restore();
  }

  /** Draws a line. `points` and the shaded area `beyond` are [x, y] in units of the axes; `label` is drawn at `at`. */
  line(context, { points, beyond = [], stroke, label, at, align = "left" }) {
    this.path(context, beyond);
    context.globalAlpha = 0.08;
    context.fillStyle = stroke;
    context.fill();
    context.globalAlpha = 1;
    this.path(context, points);
    context.strokeStyle = stroke;
    context.lineWidth = 2;
    context.stroke();
    context.font = "600 12px system-ui, sans-serif";
    const aside = align === "left" ? 8 : -10, left = this.across(at[0]) + aside, top = this.up(at[1]) - 2;
    const width = context.measureText(label).width + 6;
    context.fillStyle = colour("card"); // the label is readable above dots
    context.globalAlpha = 0.8;
    context.fillRect(align === "left" ? left - 3 : left - width + 3, top - 9, width, 18);
    context.globalAlpha = 1;
    write(context, label, left, top, align, "middle", stroke);
  }

  path(context, points) {
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(this.across(x), this.up(y)) : context.moveTo(this.across(x), this.up(y))));
  }

  mark(context, { x, y, fill, shape }, radius) {
    const left = this.across(x), top = this.up(y);
    context.beginPath();
    if (shape === "square") context.rect(left - radius, top - radius, 2 * radius, 2 * radius);
    else context.arc(left, top, radius, 0, 2 * Math.PI);
    context.fillStyle = fill;
    context.fill();
    context.strokeStyle = colour("quiet");
    context.lineWidth = 0.8;
    context.stroke();
  }

  hit(x, y) {
    let best = -1, least = NEAR ** 2;
    this.dots.forEach((dot, i) => {
      const away = (this.across(dot.x) - x) ** 2 + (this.up(dot.y) - y) ** 2;
      if (away < least) [best, least] = [i, away];
    });
    return best;
  }

  place(index) {
    const { x, y } = this.dots[index];
    return { x: this.across(x), y: this.up(y) };
  }

  /** Arrow keys follow the order of the items. */
  step(index, key) {
    if (key === "ArrowRight" || key === "ArrowDown") return index + 1;
    return key === "ArrowLeft" || key === "ArrowUp" ? index - 1 : null;
  }
}

function ticks({ from, to }) {
  const rough = (to - from) / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step / 1000; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}

function rule(context, x1, y1, x2, y2) {
  context.strokeStyle = colour("line");
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function write(context, text, x, y, align, baseline, fill = colour("quiet")) {
  context.fillStyle = fill;
  context.textAlign = align;
  context.textBaseline = baseline;
  context.fillText(text, x, y);
}
