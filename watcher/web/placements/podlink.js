// Links to the page of a pod's placement. Every view that names a pod uses them.

import { el } from "../common/dom.js";
import { NONE } from "../common/format.js";

/** The address of the placement page of a pod; `at`, in unix seconds, selects the newest decision at or before that time. */
export function podHref(namespace, name, at = null) {
  const path = `#/placements/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  return at == null ? path : `${path}?at=${Math.floor(at)}`;
}

/** A link to the placement page of a pod, as NAMESPACE/NAME. */
export function podLink(namespace, name) {
  return el("a.pod", { href: podHref(namespace, name) }, `${namespace}/${name}`);
}

/** A link for a pod given as NAMESPACE/NAME; the text itself if it is something else. */
export function linked(text) {
  const [namespace, name, more] = (text || "").split("/");
  return namespace && name && more === undefined ? podLink(namespace, name) : text || NONE;
}

export function nodeLink(name) {
  return el("a", { href: `#/node/${encodeURIComponent(name)}` }, name);
}

/** The address of the fleet view that highlights these nodes. */
export function highlightHref(nodes) {
  return `#/fleet?highlight=${nodes.map(encodeURIComponent).join(",")}`;
}
