// The score explorer: ranks the nodes for a pod manifest by a profile, with explanations.

import { ApiError, ask, post } from "./api.js";
import { el, renew, select, table, told } from "./dom.js";
import { count, seconds } from "./format.js";
import { pasted, remember } from "./manifest.js";
import { explanation, reasonOf, scoreOf } from "./why.js";

export function scoreView(app) {
  const text = el("textarea", { id: "manifest", value: pasted(), spellcheck: false, "aria-describedby": "manifest-help" });
  const profiles = el("div"), answer = el("div.stack"), why = el("div");
  const form = el("form.card.stack", { onsubmit: (event) => { event.preventDefault(); rank(); } },
    el("h2", {}, "A pod"),
    el("div", {}, el("label.quiet", { htmlFor: "manifest" }, "Manifest, YAML or JSON"), text,
      el("p.quiet", { id: "manifest-help" }, "A Pod, or a workload such as a Deployment, StatefulSet, DaemonSet or Job. Nothing is created or reserved.")),
    el("div.tools", {}, profiles, el("button", {}, "Rank nodes")));
  const root = el("div.columns", {}, el("div.stack", {}, form, why), answer);
  let asked = false, last = null, explained = null; // the response that is shown, and the node that is explained

  const profile = () => app.params.get("profile") ?? "";

  function update() {
    const { overview } = app.state;
    if (overview && !overview.scheduler) {
      root.replaceChildren(told("No scheduling plug-ins are configured.", "Configure them in [scheduler.NAME] of the settings (docs/concepts/scheduling.md), or run load-watcher demo."));
    } else if (last && explained !== app.params.get("node")) show();
  }

  async function askProfiles() {
    const { body } = await ask("scheduler/plugins");
    const names = body.profiles.includes(profile()) || !profile() ? body.profiles : [profile(), ...body.profiles];
    if (!profile()) app.params.set("profile", names.includes("default") ? "default" : names[0]);
    profiles.replaceChildren(select("Profile", names.map((name) => [name, name]), profile(), (name) => {
      app.set({ profile: name, node: null });
      rank();
    }));
  }

  async function rank() {
    try {
      last = await post(`scheduler/${encodeURIComponent(profile())}/score`, text.value, "application/yaml");
      remember(text.value); // used by other views, too, so only stored if it is valid
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
    const rows = last.nodes.map((node, i) => [
      el("button.plain", { type: "button", onclick: () => app.set({ node: node.name }), "aria-pressed": String(node === chosen) }, node.name),
      node.passes ? String(i + 1) : "–", el("span", { className: node.passes ? "" : "bad" }, scoreOf(node)), reasonOf(node),
    ]);
    const ranking = table("Ranking", [["Node"], ["Rank", "number"], ["Score", "number"], ["Reason", "long"]], rows, { empty: "no nodes" });
    ranking.querySelectorAll("tbody tr").forEach((row, i) => row.classList.toggle("chosen", last.nodes[i] === chosen));
    const rest = last.of - last.nodes.length;
    renew(answer,
      el("section.card", {}, el("h2", {}, `Ranking of ${count(last.of, "node")} by ${last.profile}`), el("p.quiet", { role: "status" }, loadOf(last)), ranking,
        rest > 0 ? el("p.quiet", {}, `and ${count(rest, "more node")}`) : null));
    why.replaceChildren(chosen ? el("section.card", {}, el("h2", {}, `Why ${chosen.name}?`), explanation(chosen, last.time)) : "");
  }

  return {
    title: "Score", root, update,
    /** Requests a ranking once; it is not updated while the user reads it. */
    async refresh() {
      if (asked || !app.state.overview?.scheduler) return;
      asked = true;
      try {
        await askProfiles();
        await rank();
      } catch (error) {
        asked = false;
        throw error;
      }
    },
  };
}

function loadOf({ load }) {
  return load == null ? "Ranked without load data." : `Based on load from ${load.source}, ${seconds(load.age_s)} old.`;
}
