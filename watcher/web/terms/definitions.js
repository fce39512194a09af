// Definitions of the terms of the page, shown where a term stands, and the notice of a view that has no data.
//
// docs/reference/glossary.md explains the same terms; tests/real/test_node_page.py compares the links with its headings.

import { el, renewing, styles } from "../common/dom.js";

/** URL of docs/ with a trailing slash, from the metadata of the package; "" as long as no documentation is published.
 *  Without it, terms lead to the definitions in this page (#/terms), and pages are named with their path. */
const DOCS = document.querySelector("meta[name=documentation]").content;

/** Term -> [name, definition, page of docs/]. */
export const TERMS = {
  stale: ["stale", "No new sample for three sample intervals, at least 90 s. The last windows are served, with their age.", "reference/dashboard.md"],
  silent: ["silent", "No sample for longer than refresh.max_staleness (5 min by default). The node is not served to schedulers.", "reference/dashboard.md#silent-nodes"],
  unheard: ["never reported", "The cluster has this node, but the source never reported a sample of it. Often a label of the source has another node name.", "reference/dashboard.md#silent-nodes"],
  quarantined: ["quarantined", "All metrics of the node have repeated exactly the same values. The node is not served until one of them changes.", "reference/review.md"],
  lost: ["lost", "The node disappeared together with many others: a partial outage of the monitoring. /watcher returns 503 meanwhile.", "reference/review.md#partial-outages"],
  hot: ["hot", "CPU or memory is at 85 % or more, averaged over the selected window. 85 % is a usual threshold of HighLoadFilter.", "reference/dashboard.md"],
  busy: ["busy", "CPU or memory is at 60 to 85 %, averaged over the selected window.", "reference/dashboard.md"],
  forecast: ["forecast", "An upper bound of the load in the next hours, from the maxima of the last days, and how often such bounds held.", "concepts/forecast.md"],
  bound: ["bound", "The load that a forecast says is not exceeded within its horizon, at the stated level: at 95 %, 19 of 20 bounds hold.", "concepts/forecast.md"],
  window: ["window", "The period over which a value is averaged: 5, 10 or 15 minutes that end with the newest sample.", "reference/glossary.md"],
  mean: ["µ, mean", "The average of the samples of a window, in percent of the capacity of the node.", "reference/glossary.md"],
  deviation: ["σ, deviation", "The standard deviation of the samples of a window, in percentage points: how much the load varies.", "reference/glossary.md"],
  margin: ["margin", "The number of deviations that are added to the mean (safeVarianceMargin of LoadVariationRiskBalancing).", "concepts/scheduling.md"],
  target: ["target utilization", "The load up to which TargetLoadPacking fills a node. The score is highest there and decreases above it.", "concepts/scheduling.md"],
  used: ["used", "The measured load of the node, averaged over the window.", "reference/glossary.md"],
  requested: ["requested", "The sum of the requests of the pods on the node. kube-scheduler subtracts it from allocatable.", "concepts/scheduling.md"],
  allocatable: ["allocatable", "The capacity less what is reserved for the system. Pods can request this much.", "concepts/scheduling.md"],
  limits: ["limits", "The sum of the limits of the pods; a pod without a limit counts with its request. It may exceed the capacity.", "concepts/scheduling.md"],
  outside: ["outside of pods", "The load of the node less the usage of its pods: kernel, kubelet, container runtime and other processes.", "reference/pods.md"],
  profile: ["profile", "A table [scheduler.NAME] of the settings: plug-ins with weights and arguments.", "concepts/scheduling.md#profiles"],
  finding: ["finding", "An observation about implausible or missing samples, with the reason and the action that was taken.", "reference/review.md"],
  estimated: ["estimated candidates", "kube-scheduler did not ask the extender about the pod, so the candidate nodes are derived from requests, selectors and taints.", "tasks/shadow.md"],
  tied: ["equal score", "The actual node has the highest score too, so that the scores of other plug-ins decide.", "tasks/shadow.md"],
  none: ["no node", "The filters of the profile reject all candidate nodes.", "tasks/shadow.md"],
};

let ids = 0;

/** A term with its definition, which is shown while the term is hovered or focused, and toggled by a click or tap.
 *  Escape closes it. `label` is the text on the page, by default the name of the term. */
export function term(key, label = TERMS[key]?.[0] ?? key) {
  if (!Object.hasOwn(TERMS, key)) return el("span", {}, label);
  styles("terms/definitions.css");
  const [, text, page] = TERMS[key];
  const id = `definition-${ids += 1}`;
  const box = el("span.definition", { id, popover: "manual" }, el("span", {}, `${text} `), docsLink(page, key));
  const button = el("button.term", { type: "button", "aria-expanded": "false", "aria-controls": id, "aria-describedby": id, "data-term": key }, label);
  const root = el("span.defined", {}, button, box);
  let closing = 0;
  const show = () => {
    clearTimeout(closing);
    if (box.matches(":popover-open")) return;
    for (const other of document.querySelectorAll(".definition:popover-open")) other.hidePopover();
    box.showPopover();
    button.setAttribute("aria-expanded", "true");
    place(button, box);
    if (renewing) closing = setTimeout(() => { if (!root.matches(":hover, :focus-within")) hide(); }, 250);
  };
  const hide = () => {
    clearTimeout(closing);
    if (box.isConnected && box.matches(":popover-open")) box.hidePopover();
    button.setAttribute("aria-expanded", "false");
  };
  let byPointer = false; // a tap focuses the button before the click, which must not close what the focus has opened
  button.addEventListener("pointerdown", () => { byPointer = true; });
  button.addEventListener("click", () => { show(); byPointer = false; });
  button.addEventListener("focus", () => { if (!byPointer && !renewing) show(); });
  root.addEventListener("mouseenter", show);
  root.addEventListener("mouseleave", () => { closing = setTimeout(hide, 250); });
  root.addEventListener("focusout", (event) => { if (!root.contains(event.relatedTarget)) hide(); });
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.matches(":popover-open")) return;
    event.stopPropagation();
    hide();
  });
  return root;
}

/** Positions the box below the term, inside the viewport. */
function place(button, box) {
  const at = button.getBoundingClientRect(), width = document.documentElement.clientWidth;
  box.style.left = `${Math.max(8, Math.min(at.left, width - box.offsetWidth - 8))}px`;
  const below = at.bottom + 4;
  box.style.top = `${below + box.offsetHeight < window.innerHeight ? below : Math.max(8, at.top - box.offsetHeight - 4)}px`;
}

function docsLink(page, key) {
  return DOCS ? el("a", { href: DOCS + page }, "docs") : el("a", { href: `#/terms/${key}` }, "all terms");
}

/** A text of the page or the service; the paths of docs/ in it are links if the documentation is published. */
export function linked(text) {
  if (!DOCS) return [text];
  return text.split(/(docs\/[\w/-]+\.md(?:#[\w-]+)?)/).map((part, i) => (i % 2 ? el("a", { href: DOCS + part.slice("docs/".length) }, part) : part));
}

/** A card of a view or section without data: what it would show, and the lines of the settings that enable it. */
export function missing(shows, lines, { hint = "", page = "" } = {}) {
  styles("terms/definitions.css");
  return el("section.card.stack.missing", {}, el("p", {}, shows), hint ? el("p.quiet", {}, hint) : null,
    lines ? [el("p", {}, "To enable it, add these lines to the settings and restart load-watcher:"),
      el("pre", { tabIndex: 0, "aria-label": "Settings" }, lines)] : null,
    page ? el("p.quiet", {}, "Described in ", linked(`docs/${page}`), DOCS ? "." : " in the repository.") : null);
}

export function termsView(app) {
  styles("terms/definitions.css");
  const rows = Object.entries(TERMS).sort(([, [a]], [, [b]]) => a.localeCompare(b)).map(([key, [name, text, page]]) =>
    el("div", { id: `term-${key}`, className: key === app.argument ? "chosen" : "" }, el("dt", {}, name), el("dd", {}, text, " ",
      DOCS ? docsLink(page, key) : el("span.quiet", {}, `docs/${page.split("#")[0]}`))));
  const root = el("div.stack", {}, el("h2", {}, "Terms"), DOCS ? null : el("p.quiet", {}, "Paths that start with docs/ are in the repository."), el("dl.card.terms", {}, rows));
  return {
    title: "Terms", root, update() {},
    async refresh() {
      if (this.scrolled) return;
      this.scrolled = true;
      root.querySelector(".chosen")?.scrollIntoView({ block: "center" });
    },
  };
}
