// A list of many items drawn on one canvas. The mouse or the arrow keys select an item, Enter opens it, and a screen
// reader reads the active item. A painter draws the items:
//   layout(width, items) -> height    paint(context, active)    hit(x, y) -> index or -1
//   place(index) -> { x, y }          step(index, key) -> index, or null for other keys

import { onThemeChange } from "../common/theme.js";
import { el } from "../common/dom.js";

let ids = 0;

export class CanvasList {
  /** `describe(item)` returns lines of text, starting with the name; `open(item)` is called when an item is opened. */
  constructor({ label, painter, describe, open }) {
    this.items = [];
    this.active = -1;
    this.painter = painter;
    this.describe = describe;
    this.open = open;
    const id = `active-${ids += 1}`;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.option = el("div.hidden-text", { id, role: "option", "aria-selected": "true" });
    this.tip = el("div.tip", { "aria-hidden": "true", hidden: true });
    this.root = el("div.picture", { role: "listbox", tabIndex: 0, "aria-label": label, "aria-activedescendant": id },
      this.canvas, this.option, this.tip);
    this.listen();
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.root);
    this.forget = onThemeChange(() => this.draw());
  }

  listen() {
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.choose(-1));
    this.canvas.addEventListener("click", (event) => {
      this.point(event);
      if (this.active >= 0) this.open(this.items[this.active]);
    });
    this.root.addEventListener("focus", () => { if (this.active < 0 && this.items.length) this.choose(0); });
    this.root.addEventListener("blur", () => this.choose(-1));
    this.root.addEventListener("keydown", (event) => this.press(event));
  }

  set(items) {
    const name = this.active >= 0 ? this.items[this.active]?.name : null;
    this.items = items;
    this.active = name == null ? -1 : items.findIndex((item) => item.name === name);
    this.draw();
    this.tell();
  }

  end() {
    this.sizes.disconnect();
    this.forget();
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    this.choose(this.painter.hit(event.clientX - box.left, event.clientY - box.top));
    this.canvas.style.cursor = this.active >= 0 ? "pointer" : "";
  }

  press(event) {
    if (!this.items.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const at = Math.max(0, this.active);
    let next = null;
    if (event.key === "Enter" || event.key === " ") this.open(this.items[at]);
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = this.items.length - 1;
    else if (event.key === "Escape") this.root.blur();
    else next = this.painter.step(at, event.key);
    if (next == null && !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    if (next != null) this.choose(Math.min(this.items.length - 1, Math.max(0, next)));
  }

  choose(index) {
    if (index === this.active) return;
    this.active = index;
    this.draw();
    this.tell();
  }

  tell() {
    const item = this.items[this.active];
    this.tip.hidden = !item;
    const lines = item ? this.describe(item) : [];
    this.option.textContent = item ? lines.join(", ") : `${this.items.length} items; use the arrow keys to select one`;
    this.option.setAttribute("aria-setsize", String(this.items.length));
    this.option.setAttribute("aria-posinset", String(Math.max(0, this.active) + 1));
    if (!item) return;
    this.tip.textContent = lines.join("\n");
    const { x, y } = this.painter.place(this.active);
    const width = this.tip.offsetWidth, height = this.tip.offsetHeight;
    const left = x + 16 + width > this.root.clientWidth ? x - width - 12 : x + 16;
    this.tip.style.left = `${Math.max(0, left)}px`;
    this.tip.style.top = `${y + 16 + height > this.root.clientHeight ? Math.max(0, y - height - 12) : y + 16}px`;
  }

  draw() {
    const width = this.root.clientWidth;
    if (!width) return;
    const height = this.painter.layout(width, this.items);
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.painter.paint(context, this.active);
  }
}
