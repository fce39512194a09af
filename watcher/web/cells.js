// Painter of nodes as cells. Cells are as large as fits on one screen; large cells show the name and value.

import { colour, heat } from "./theme.js";
import { LABELS, STATES } from "./load.js";
import { NONE, seconds } from "./format.js";

const GAP = 2;
const TILE = { width: 150, height: 46 }; // a cell with text
const SMALLEST = 9;
const LARGEST = 40;
const NOT_SERVED = [STATES.quarantined, STATES.lost, STATES.unheard];

export class Cells {
  constructor() {
    this.metric = "cpu";
    this.items = [];
  }

  layout(width, items) {
    this.items = items;
    const room = Math.max(280, window.innerHeight * 0.55);
    const across = Math.max(1, Math.floor(width / TILE.width));
    if (Math.ceil(items.length / across) * TILE.height <= room) {
      Object.assign(this, { across, width: width / across, height: TILE.height, text: true });
    } else {
      let side = LARGEST;
      while (side > SMALLEST && Math.ceil(items.length / Math.floor(width / side)) * side > room) side -= 1;
      const fit = Math.max(1, Math.floor(width / side));
      Object.assign(this, { across: fit, width: width / fit, height: side, text: false });
    }
    return Math.max(1, Math.ceil(items.length / this.across)) * this.height;
  }

  paint(context, active) {
    this.items.forEach((node, i) => this.cell(context, node, i));
    if (active < 0) return;
    const { x, y } = this.corner(active);
    context.strokeStyle = colour("ink");
    context.lineWidth = 3;
    context.strokeRect(x + 1, y + 1, this.width - GAP - 1, this.height - GAP - 1);
  }

  corner(index) {
    return { x: (index % this.across) * this.width, y: Math.floor(index / this.across) * this.height };
  }

  cell(context, node, index) {
    const { x, y } = this.corner(index);
    const width = this.width - GAP, height = this.height - GAP;
    paintCell(context, node, this.metric, { x, y, width, height }, this.text ? height : width);
    if (this.text) this.write(context, node, { x, y, width, height });
  }

  write(context, node, { x, y, width, height }) {
    const load = node[this.metric];
    context.fillStyle = load ? heat(load.mean).ink : colour("ink");
    context.textBaseline = "top";
    context.font = "12px system-ui, sans-serif";
    context.fillText(node.name, x + 8, y + 6, width - 16);
    context.font = "600 14px system-ui, sans-serif";
    context.fillText(note(node, load), x + 8, y + height - 20, width - 16);
  }

  hit(x, y) {
    const column = Math.floor(x / this.width);
    const index = Math.floor(y / this.height) * this.across + column;
    return column < this.across && index >= 0 && index < this.items.length ? index : -1;
  }

  place(index) {
    const { x, y } = this.corner(index);
    return { x: x + this.width / 2, y: y + this.height / 2 };
  }

  step(index, key) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.across, ArrowUp: -this.across };
    const by = steps[key];
    if (by == null) return null;
    const next = index + by;
    return next < 0 || next >= this.items.length ? index : next;
  }
}

function note(node, load) {
  if (load) return `${load.mean.toFixed(0)} %${node.state === STATES.stale ? ", stale" : ""}`;
  if (node.state === STATES.silent) return `silent for ${seconds(node.age)}`;
  return NOT_SERVED.includes(node.state) ? LABELS[node.state] : NONE;
}

/** Paints one cell. The state is recognizable without colour: stale is striped, quarantined is crossed out, lost has a
 *  dashed frame, silent a flat line, never reported a dot. The mark covers the right `marked` pixels of the cell. */
export function paintCell(context, node, metric, box, marked = box.width) {
  const load = node[metric];
  context.fillStyle = load ? heat(load.mean).fill : colour("card");
  context.fillRect(box.x, box.y, box.width, box.height);
  if (node.state === STATES.fresh && load) return;
  const { y, height } = box, width = Math.min(marked, box.width), x = box.x + box.width - width;
  // in a cell with text the mark is above the second line
  const middle = marked < box.width ? { x: x + width - 16, y: y + 13, room: 13 } : { x: x + width / 2, y: y + height / 2, room: width / 2 };
  if (!load) {
    context.strokeStyle = colour(node.state === STATES.silent ? "bad" : "quiet");
    context.lineWidth = 1;
    context.setLineDash(node.state === STATES.lost ? [3, 3] : []);
    context.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
    context.setLineDash([]);
  }
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = load ? heat(load.mean).ink : colour("quiet");
  context.lineWidth = 1.5;
  context.beginPath();
  if (node.state === STATES.stale) {
    context.globalAlpha = 0.45;
    for (let at = -height; at < width; at += 7) {
      context.moveTo(x + at, y + height);
      context.lineTo(x + at + height, y);
    }
  } else if (node.state === STATES.quarantined) {
    context.globalAlpha = 0.6;
    context.moveTo(x, y);
    context.lineTo(x + width, y + height);
    context.moveTo(x + width, y);
    context.lineTo(x, y + height);
  } else if (node.state === STATES.silent) {
    context.strokeStyle = colour("bad");
    context.lineWidth = 2;
    context.moveTo(middle.x - middle.room * 0.6, middle.y);
    context.lineTo(middle.x + middle.room * 0.6, middle.y);
  } else if (node.state === STATES.unheard) {
    context.lineWidth = 2;
    context.arc(middle.x, middle.y, Math.max(0.5, middle.room / 4), 0, 2 * Math.PI);
  }
  context.stroke();
  context.restore();
}
