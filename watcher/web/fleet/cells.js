// Painter of nodes as cells. Cells are as large as fits on one screen; large cells show the name and value. With groups,
// each group is a block with a heading; blocks are placed beside each other where they fit.

import { STRONG, mark, signed } from "./trend.js";
import { colour, heat } from "../common/theme.js";
import { LABELS, STATES } from "../load.js";
import { NONE, seconds } from "../common/format.js";

const GAP = 2;
const TILE_HEIGHT = 46; // a cell with text
const TILE_WIDTH = 150;
const NARROW = 480; // pixels; on narrower pictures, cells with text are narrower, and there are always some of them
const NARROW_TILE_WIDTH = 104;
const FEW = 60; // nodes that have cells with text although they take more than one screen
const SMALLEST = 9;
const NARROW_SMALLEST = 7;
const LARGEST = 40;
const HEADING = 24; // height of the heading of a group
const BETWEEN = 14; // between groups
const BLOCK_WIDTH = 170; // of a group at least, for its heading
const FADED = 0.22; // opacity of nodes that are not highlighted
const NOT_SERVED = [STATES.quarantined, STATES.lost, STATES.unheard];

export class Cells {
  /** `groups` are [{ name, note, nodes }] in the order of the items, null without groups. `highlight` is a set of names,
   *  null to highlight none. */
  constructor() {
    this.metric = "cpu";
    this.items = [];
    this.groups = null;
    this.highlight = null;
  }

  layout(width, items) {
    this.items = items;
    const narrow = width < NARROW;
    const room = Math.max(280, window.innerHeight * 0.55);
    const tall = this.arrange(width, narrow ? NARROW_TILE_WIDTH : TILE_WIDTH, TILE_HEIGHT);
    this.text = tall <= room || items.length <= FEW;
    if (this.text) return tall;
    let side = LARGEST, height = this.arrange(width, side, side);
    while (side > (narrow ? NARROW_SMALLEST : SMALLEST) && height > room) {
      side -= 1;
      height = this.arrange(width, side, side);
    }
    return height;
  }

  /** Places all blocks for cells of about this size; returns the height. */
  arrange(width, cellWidth, height) {
    const across = Math.max(1, Math.floor(width / cellWidth));
    this.height = height;
    this.blocks = [];
    if (!this.groups) {
      this.width = width / across;
      const rows = Math.max(1, Math.ceil(this.items.length / across));
      this.blocks.push({ x: 0, y: 0, across, from: 0, many: this.items.length, group: null });
      return rows * height;
    }
    this.width = cellWidth;
    let x = 0, y = 0, shelf = 0, from = 0;
    for (const group of this.groups) {
      const many = group.nodes.length;
      const least = Math.min(across, Math.ceil(BLOCK_WIDTH / cellWidth));
      const columns = Math.max(least, Math.min(across, many));
      const needs = columns * cellWidth;
      if (x && x + needs > width) {
        x = 0;
        y += shelf + BETWEEN;
        shelf = 0;
      }
      this.blocks.push({ x, y: y + HEADING, across: columns, from, many, group });
      shelf = Math.max(shelf, HEADING + Math.ceil(many / columns) * height);
      x += needs + BETWEEN;
      from += many;
    }
    return y + shelf;
  }

  paint(context, active) {
    for (const block of this.blocks) {
      if (block.group) this.heading(context, block);
      for (let i = block.from; i < block.from + block.many; i += 1) this.cell(context, this.items[i], i, block);
    }
    if (active < 0) return;
    this.frame(context, active, 3);
  }

  frame(context, index, width) {
    const { x, y } = this.corner(index);
    context.strokeStyle = colour("ink");
    context.lineWidth = width;
    context.strokeRect(x + 1, y + 1, this.width - GAP - 1, this.height - GAP - 1);
  }

  heading(context, { x, y, across, group }) {
    context.fillStyle = colour("ink");
    context.textBaseline = "bottom";
    context.font = "600 13px system-ui, sans-serif";
    const room = across * this.width;
    const name = fitted(context, group.name, room);
    context.fillText(name, x, y - 4);
    const used = context.measureText(name).width + 8;
    context.fillStyle = colour("quiet");
    context.font = "12px system-ui, sans-serif";
    if (used + context.measureText(group.note).width <= room) context.fillText(group.note, x + used, y - 4);
  }

  block(index) {
    return this.blocks.find(({ from, many }) => index >= from && index < from + many) ?? this.blocks[0];
  }

  corner(index, block = this.block(index)) {
    const at = index - block.from;
    return { x: block.x + (at % block.across) * this.width, y: block.y + Math.floor(at / block.across) * this.height };
  }

  cell(context, node, index, block) {
    const { x, y } = this.corner(index, block);
    const width = this.width - GAP, height = this.height - GAP;
    const marked = this.highlight?.has(node.name);
    if (this.highlight && !marked) context.globalAlpha = FADED;
    paintCell(context, node, this.metric, { x, y, width, height }, this.text ? sizeOfMark(width, height) : width);
    if (this.text) this.write(context, node, { x, y, width, height });
    else this.corners(context, node, { x, y, width });
    context.globalAlpha = 1;
    if (marked) this.frame(context, index, 2);
  }

  /** The mark of a strong trend: a triangle in the upper corner if the load rises, in the lower one if it falls. */
  corners(context, node, { x, y, width }) {
    const points = node.trend?.[this.metric];
    if (!node[this.metric] || !mark(points, STRONG)) return;
    const size = Math.max(3, width * 0.45), rises = points > 0;
    const edge = rises ? y : y + this.height - GAP;
    context.fillStyle = heat(node[this.metric].mean).ink;
    context.beginPath();
    context.moveTo(x + width - size, edge);
    context.lineTo(x + width, edge);
    context.lineTo(x + width, edge + (rises ? size : -size));
    context.fill();
  }

  write(context, node, { x, y, width, height }) {
    const load = node[this.metric];
    context.fillStyle = load ? heat(load.mean).ink : colour("ink");
    context.textBaseline = "top";
    context.font = "12px system-ui, sans-serif";
    const beside = node.state === STATES.fresh ? 0 : sizeOfMark(width, height); // the mark is right of the text
    const across = [STATES.stale, STATES.quarantined].includes(node.state) ? beside : 0; // its mark is as high as the cell
    context.fillText(fitted(context, node.name, width - 12 - beside), x + 6, y + 6);
    context.font = "600 14px system-ui, sans-serif";
    const trend = load && mark(node.trend?.[this.metric]) ? `  ${signed(node.trend[this.metric])}` : "";
    context.fillText(`${note(node, load)}${trend}`, x + 6, y + height - 20, width - 12 - across);
  }

  hit(x, y) {
    for (const { x: left, y: top, across, from, many } of this.blocks) {
      const column = Math.floor((x - left) / this.width), row = Math.floor((y - top) / this.height);
      if (column < 0 || column >= across || row < 0) continue;
      const at = row * across + column;
      if (at < many) return from + at;
    }
    return -1;
  }

  place(index) {
    const { x, y } = this.corner(index);
    return { x: x + this.width / 2, y: y + this.height / 2 };
  }

  step(index, key) {
    const { across } = this.block(index);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    const by = steps[key];
    if (by == null) return null;
    const next = index + by;
    return next < 0 || next >= this.items.length ? index : next;
  }
}

/** The width of the mark of a state in a cell with text. */
function sizeOfMark(width, height) {
  return Math.min(height, width * 0.25);
}

/** A name that fits into `room` pixels: without its domain, or cut in its middle. */
function fitted(context, name, room) {
  if (context.measureText(name).width <= room) return name;
  const host = name.split(".")[0];
  if (host !== name && context.measureText(host).width <= room) return host;
  for (let kept = host.length - 1; kept > 4; kept -= 1) {
    const cut = `${host.slice(0, Math.ceil(kept / 2))}…${host.slice(-Math.floor(kept / 2))}`;
    if (context.measureText(cut).width <= room) return cut;
  }
  return host.slice(0, 4);
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
    context.globalAlpha *= 0.45;
    for (let at = -height; at < width; at += 7) {
      context.moveTo(x + at, y + height);
      context.lineTo(x + at + height, y);
    }
  } else if (node.state === STATES.quarantined) {
    context.globalAlpha *= 0.6;
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
