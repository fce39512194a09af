// Creates elements. Data is set as text nodes and properties, never as markup.

const NARROW = 3; // columns that fit on a small screen
const SVG = "http://www.w3.org/2000/svg";

/** el("p.quiet", { id: "x", onclick, "aria-label": "…" }, children…); a child is a text, an element, a list, or null. */
export function el(what, properties = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (value == null) continue;
    if (name in made && !name.startsWith("aria")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A table. `columns` are [heading, class]; a cell is a text or an element. The first cell of a row is its heading. On
 *  small screens, style.css shows each row of a table with many columns as a block of "heading: value" lines. */
export function table(caption, columns, rows, { empty = "none" } = {}) {
  const head = columns.map(([text, kind]) => el("th", { className: kind ?? "", scope: "col", role: "columnheader" }, text));
  const body = rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, i) => {
    const kind = columns[i][1] ?? "";
    return i === 0 ? el("th", { className: kind, scope: "row", role: "rowheader" }, cell)
      : el("td", { className: kind, role: "cell", "data-label": columns[i][0] }, cell);
  })));
  if (!rows.length) body.push(el("tr", {}, el("td.quiet", { colSpan: columns.length }, empty)));
  return el("div.scroll", { tabIndex: 0, role: "region", "aria-label": `${caption}, table` },
    el(`table${columns.length > NARROW ? ".stacked" : ""}`, { role: "table" }, el("caption.hidden-text", {}, caption), el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" }, body)));
}

let ids = 0;

/** Radio buttons in a row. `options` are [value, label]; `chosen` is called with the new value. */
export function choice(legend, options, value, chosen) {
  const name = `choice-${ids += 1}`;
  return el("fieldset.choice", {}, el("legend", {}, legend), el("div", {}, options.map(([each, label]) =>
    el("label", {}, el("input", { type: "radio", name, value: each, checked: each === value, onchange: () => chosen(each) }),
      el("span", {}, label)))));
}

export function select(label, options, value, chosen) {
  const id = `select-${ids += 1}`;
  return el("div", {}, el("label", { htmlFor: id }, label), el("select", { id, onchange: (event) => chosen(event.target.value) },
    options.map(([each, text]) => el("option", { value: each, selected: each === value }, text))));
}

export function field(label, properties) {
  const id = `field-${ids += 1}`;
  return el("div", {}, el("label", { htmlFor: id }, label), el("input", { id, ...properties }));
}

/** A list of names and values; a value may be [large text, small text]. */
export function numbers(entries) {
  return el("dl.numbers", {}, entries.map(([name, value]) => {
    const [large, small] = Array.isArray(value) ? value : [value, null];
    return el("div.card", {}, el("dt", {}, name), el("dd", {}, large, small == null ? null : el("small", {}, small)));
  }));
}

/** True while `renew` restores what was focused and open. */
export let renewing = false;

/** Replaces the children of `place`; the focus moves to the new element with the same name, and an open definition is
 *  opened again. */
export function renew(place, ...children) {
  const focused = placeOf(document.activeElement, place), open = placeOf(place.querySelector("[data-term][aria-expanded=true]"), place);
  place.replaceChildren(...children);
  renewing = true;
  elementAt(open, place)?.click();
  elementAt(focused, place)?.focus({ preventScroll: true });
  renewing = false;
}

/** [name, number among the elements with this name] of an element in `place`; null if it is elsewhere. */
function placeOf(element, place) {
  if (!element || !place.contains(element)) return null;
  return [nameOf(element), named(nameOf(element), place).indexOf(element)];
}

function elementAt(found, place) {
  return found && (named(found[0], place)[found[1]] ?? null);
}

function named(name, place) {
  return [...place.querySelectorAll("a, button, [tabindex]")].filter((each) => nameOf(each) === name);
}

/** A term has a name that stays if its label, which may contain a number, changes. */
function nameOf(element) {
  return element.dataset.term ?? element.getAttribute("aria-label") ?? element.textContent;
}

/** A card with a message and a hint, shown instead of data. */
export function notice(message, hint) {
  return el("div.card", {}, el("p", {}, message), hint ? el("p.quiet", {}, hint) : null);
}

/** Loads a style sheet, a file in web/, once; resolves when it applies, so that a view is not painted without it. */
export function styles(file) {
  const href = `web/${file}`;
  if (document.querySelector(`link[href="${href}"]`)) return null;
  return new Promise((resolve) => {
    document.head.append(el("link", { rel: "stylesheet", href, onload: resolve, onerror: resolve }));
  });
}
