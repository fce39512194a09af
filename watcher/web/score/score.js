// The score explorer: ranks the nodes for a pod manifest, by a profile of the settings or by one that the user enters.

import { ApiError, ask, post } from "../common/api.js";
import { el, field, renew, select, table } from "../common/dom.js";
import { NONE, count, seconds } from "../common/format.js";
import { profileText, pasted, remember, rememberProfile } from "./manifest.js";
import { TEMPLATES } from "./profiles.js";
import { linked } from "../terms/definitions.js";
import { explanation, reasonOf, scoreOf } from "./why.js";

const OWN = "your own";

export function scoreView(app) {
  const text = el("textarea", { id: "manifest", value: pasted(), spellcheck: false, "aria-describedby": "manifest-help" });
  const own = ownProfile();
  const profiles = el("div.tools"), answer = el("div.stack"), why = el("div");
  const form = el("form.card.stack", { onsubmit: (event) => { event.preventDefault(); rank(); } },
    el("h2", {}, "A pod"),
    el("div", {}, el("label.quiet", { htmlFor: "manifest" }, "Manifest, YAML or JSON"), text,
      el("p.quiet", { id: "manifest-help" }, "A Pod, or a workload such as a Deployment, StatefulSet, DaemonSet or Job. Nothing is created or reserved.")),
    profiles, own.root, el("div", {}, el("button", {}, "Rank nodes")));
  const root = el("div.columns", {}, form, el("div.stack", {}, why, answer));
  let asked = false, last = null, explained = null; // the response that is shown, and the node that is explained

  const profile = () => app.params.get("profile") ?? "";
  const isOwn = () => profile() === OWN;

  function update() {
    if (last && explained !== app.params.get("node")) {
      show();
      why.scrollIntoView({ block: "nearest" });
    }
  }

  /** Offers the profiles of the settings, if there are any, and the user's own. */
  async function askProfiles() {
    const configured = app.state.overview?.scheduler ? (await ask("scheduler/plugins")).body.profiles : [];
    const names = [...new Set([profile(), ...configured].filter((name) => name && name !== OWN))].sort();
    if (!profile()) app.params.set("profile", names.includes("default") ? "default" : names[0] ?? OWN);
    own.root.hidden = !isOwn();
    profiles.replaceChildren(select("Profile", [...names.map((name) => [name, name]), [OWN, "enter your own"]], profile(), (name) => {
      app.set({ profile: name, node: null });
      own.root.hidden = !isOwn();
      rank();
    }));
  }

  function request() {
    if (!isOwn()) return post(`scheduler/${encodeURIComponent(profile())}/score`, text.value, "application/yaml");
    return post("scheduler/try", JSON.stringify({ pod: text.value, profile: own.text(), ...own.size() }));
  }

  async function rank() {
    try {
      last = await request();
      remember(text.value); // used by other views, too, so only stored if it is valid
      if (isOwn()) rememberProfile(own.text());
      show();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      last = null;
      asked = error.status !== 401; // requested again once there is a token
      why.replaceChildren();
      answer.replaceChildren(el("div.card", { role: "alert" }, el("p.bad", {}, error.message), el("p.quiet", {}, error.hint)));
    }
  }

  function show() {
    explained = app.params.get("node");
    const chosen = last.nodes.find((node) => node.name === explained) ?? last.nodes[0];
    const ranks = ranksOf(last.nodes);
    const rows = last.nodes.map((node, i) => [
      el("button.plain", { type: "button", onclick: () => app.set({ node: node.name }), "aria-pressed": String(node === chosen) }, node.name),
      ranks[i], el("span", { className: node.passes ? "" : "bad" }, scoreOf(node)), reasonOf(node),
    ]);
    const ranking = table("Ranking", [["Node"], ["Rank", "number"], ["Score", "number"], ["Reason", "long"]], rows, { empty: "no nodes" });
    ranking.querySelectorAll("tbody tr").forEach((row, i) => row.classList.toggle("chosen", last.nodes[i] === chosen));
    const rest = last.of - last.nodes.length;
    renew(answer,
      el("section.card", {}, el("h2", {}, `Ranking of ${count(last.of, "node")} by ${last.profile}`), el("p.quiet", { role: "status" }, loadOf(last)),
        (last.left_out ?? []).map((each) => el("p.warn", {}, `${each.name} is left out: it ${each.reason}.`)),
        (last.notes ?? []).map((note) => el("p.quiet", {}, linked(note))), ranking,
        rest > 0 ? el("p.quiet", {}, `and ${count(rest, "more node")}`) : null));
    why.replaceChildren(chosen ? el("section.card", {}, el("h2", {}, `Why ${chosen.name}?`), explanation(chosen, last.time)) : "");
  }

  return {
    title: "Score", root, update,
    /** Requests a ranking once; it is not updated while the user reads it. */
    async refresh() {
      if (asked || !app.state.overview) return;
      asked = true;
      try {
        if (!profiles.firstChild) await askProfiles();
        const nothing = isOwn() ? app.nothing() : null; // the profiles of the settings have nodes without load, too
        if (nothing) {
          asked = false;
          answer.replaceChildren(nothing);
        } else await rank();
      } catch (error) {
        asked = false;
        throw error;
      }
    },
  };
}

/** The rank of each node, best first. Equal scores share a rank, as in the recorded ranking of a pod. */
function ranksOf(nodes) {
  return nodes.map((node) => (node.passes ? String(1 + nodes.findIndex((each) => each.score === node.score)) : NONE));
}

/** The fields of a profile that the user enters, and of the size of nodes with unknown capacity. */
function ownProfile() {
  const text = el("textarea", { id: "profile-text", value: profileText(), spellcheck: false, "aria-describedby": "profile-help" });
  const template = select("Start from", [["", "the text below"], ...Object.keys(TEMPLATES).map((name) => [name, name])], "", (name) => {
    if (name) text.value = TEMPLATES[name];
  });
  const cpu = field("Cores of a node", { type: "text", inputMode: "decimal", size: 6, placeholder: "8" });
  const memory = field("Memory of a node", { type: "text", size: 6, placeholder: "32Gi" });
  const value = (each) => each.querySelector("input").value.trim();
  const root = el("div.stack", { hidden: true },
    el("div.tools", {}, template, cpu, memory),
    el("div", {}, el("label.quiet", { htmlFor: "profile-text" }, "Profile: plug-ins with arguments, or a KubeSchedulerConfiguration"), text,
      el("p.quiet", { id: "profile-help" }, "Scored from the windows alone, without [scheduler] and without the Kubernetes API. The size of a node "
        + "is only needed if the source does not know the capacity of the nodes.")));
  return { root, text: () => text.value, size: () => (value(cpu) || value(memory) ? { node: { cpu: value(cpu), memory: value(memory) } } : {}) };
}

function loadOf({ load }) {
  return load == null ? "Ranked without load data." : `Based on load from ${load.source}, ${seconds(load.age_s)} old.`;
}
