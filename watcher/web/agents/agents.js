// Pages of agents and QoS Resource Managers, proxied by the service, read-only.

import { ApiError, ask } from "../common/api.js";
import { missing } from "../terms/definitions.js";
import { el, notice, numbers, renew, select, table } from "../common/dom.js";
import { bytes, clock, count, limits, plain, seconds } from "../common/format.js";
import { linked } from "../placements/podlink.js";
import { cpusOf, socketsOf } from "./cpus.js";

const MOST = 100;

const SHOWS = "The plans and actions of the node agents, and the CPUs and pods of the QoS Resource Managers, are shown here. None are configured.";
const SETTINGS = `[agents]
pods = { selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }
token_file = "/run/secrets/load-watcher/agent-token"`;
const HINT = "Without a Kubernetes API, set urls = [\"http://NODE:2023\"] in place of pods. [qrms] has the same keys for QoS Resource Managers.";

const KINDS = { agent: "agent", qrm: "QoS Resource Manager" };

export function agentsView(app) {
  const tools = el("div.tools"), troubles = el("div.stack"), place = el("div.stack");
  const root = el("div.stack", {}, tools, troubles, place);
  const wanted = app.argument;
  let agents = [], built = "", last = null;

  /** The agent named in the address (undefined if unknown); the first one without a name. */
  const chosen = () => (wanted ? agents.find(({ name }) => name === wanted) : agents[0]);

  function update() {
    if (app.state.overview && !app.state.overview.agents) {
      if (!root.querySelector(".missing")) root.replaceChildren(missing(SHOWS, SETTINGS, { hint: HINT, page: "reference/dashboard.md" }));
    }
  }

  function build(found) {
    const now = JSON.stringify(found);
    if (built === now) return;
    built = now;
    agents = found.agents;
    const options = agents.map((each) => [each.name, called(each)]);
    if (wanted && !chosen()) options.unshift([wanted, `${wanted} (not found)`]);
    tools.replaceChildren(...(options.length
      ? [select("Shown", options, chosen()?.name ?? wanted, (name) => { location.hash = addressOf(name); })] : []));
    troubles.hidden = !found.troubles.length;
    troubles.replaceChildren(...found.troubles.map(({ kind, of, message, hint }) => notice(`${KINDS[kind]}, ${of}: ${message}`, hint)));
  }

  /** The message for an agent that no longer exists, with a link to the new agent on its node, if there is one. */
  function gone() {
    if (!wanted) return [];
    const heir = last?.node && agents.find(({ kind, node }) => kind === last.kind && node === last.node);
    return [
      notice(`No agent at ${wanted}.`, "A recreated pod has a different address."),
      ...(heir ? [el("p", {}, "Current agent on this node: ", el("a", { href: addressOf(heir.name) }, called(heir)))] : []),
    ];
  }

  /** The elements of a page; an error message if it cannot be rendered, for example because of another version. */
  function drawn({ name, kind }, pages) {
    try {
      return kind === "qrm" ? qrm(...pages) : agent(...pages);
    } catch (error) {
      return [notice(`unexpected response from ${name}: ${error.message}`, "Check its version, and that the address belongs to an agent.")];
    }
  }

  return {
    title: "Agents", root, update,
    async refresh() {
      if (!app.state.overview?.agents) return;
      build((await ask("api/v1/agents")).body);
      const one = chosen();
      if (!one) {
        renew(place, ...gone());
        return;
      }
      last = one;
      try {
        const pages = one.kind === "qrm" ? ["state", "decisions"] : ["plan", "audit"];
        const answers = await Promise.all(pages.map((page) => ask(`api/v1/agents/${encodeURIComponent(one.name)}/${page}`)));
        renew(place, ...drawn(one, answers.map(({ body }) => body)));
      } catch (error) {
        if (!(error instanceof ApiError) || !error.status) throw error;
        place.replaceChildren(notice(error.message, error.hint));
      }
    },
  };
}

const addressOf = (name) => `#/agents/${encodeURIComponent(name)}`;

const nodeLink = (node) => (node ? el("a", { href: `#/node/${encodeURIComponent(node)}` }, node) : "unknown");

function called({ kind, name, node }) {
  return node ? `${KINDS[kind]} on ${node} (${name})` : `${KINDS[kind]} at ${name}`;
}

// --- an agent ----------------------------------------------------------------------------------------------------

function agent(plan, audit) {
  const stance = plan.stance ?? "unknown";
  return [
    numbers([
      ["Node", nodeLink(plan.node)], ["Enforcement level", [stance, plan.why]], ["Cycle", [String(plan.cycle), `${seconds(plan.age_s)} ago`]],
      ["Pods", [String(plan.pods), count(plan.policies.rules.length, "rule")]],
    ]),
    plan.trouble ? el("p.bad", {}, plan.trouble) : null,
    el("section.card", {}, el("h2", {}, "Plan summary"), el("ul", {}, plan.sentences.map((each) => el("li", {}, each))),
      plan.policies.problems.map((each) => el("p.bad", {}, each))),
    became(plan.results ?? []),
    el("section.card", {}, el("h2", {}, "Rules"), rules(plan.plan?.rules ?? [])),
    ...(plan.plan?.stages ?? []).map(stage),
    el("section.card", {}, el("h2", {}, "Audit log"), deeds(audit.deeds)),
    leftAlone(plan.plan?.left_alone ?? {}),
  ].filter(Boolean);
}

/** The result of each step of the plan. Steps in preview are omitted, because the plan describes them. */
function became(results) {
  const rows = results.filter((each) => each.fate !== "would").slice(0, MOST).map(({ step, fate, text }) => [step.kind, linked(step.pod), fate, text || "–"]);
  return rows.length ? el("section.card", {}, el("h2", {}, "Step results"),
    table("Step results", [["Step"], ["Pod", "name"], ["Result"], ["Reason", "long"]], rows)) : null;
}

function rules(found) {
  return table("Rules", [["Rule"], ["Verdict"], ["Metric"], ["Now", "number"], ["Watermark", "number"], ["Action"]],
    found.map((rule) => [rule.rule, rule.verdict + (rule.preview ? " (preview)" : ""), rule.metric, plain(rule.sample), plain(rule.watermark), rule.action]),
    { empty: "no rules" });
}

function stage(each) {
  const title = `${each.kind} for ${each.metric}`;
  const rows = each.candidates.slice(0, MOST).map((pod, i) => [linked(pod.pod), String(i + 1), pod.chosen ? "yes" : "no", pod.why || "–",
    plain(pod.released), plain(pod.keys)]);
  return el("section.card", {}, el("h2", {}, `Candidates: ${title}`), el("p", {}, each.text),
    table(`Candidates: ${title}`, [["Pod"], ["Order", "number"], ["Chosen"], ["Reason", "long"], ["Releases", "long"], ["Sort keys", "long"]], rows));
}

function deeds(found) {
  return table("Audit", [["Time"], ["Kind"], ["Pod", "name"], ["Reason", "long"], ["Before", "long"], ["After", "long"], ["Outcome"]],
    found.map((deed) => [clock(deed.time), deed.kind, linked(deed.pod), deed.reason, limits(deed.before), limits(deed.after),
      deed.outcome + (deed.message ? `: ${deed.message}` : "")]), { empty: "no actions" });
}

function leftAlone(pods) {
  const rows = Object.entries(pods).slice(0, MOST).map(([pod, why]) => [linked(pod), why]);
  return rows.length
    ? el("section.card", {}, el("h2", {}, "Skipped pods"), table("Skipped pods", [["Pod"], ["Reason", "long"]], rows)) : null;
}

// --- a QoS Resource Manager --------------------------------------------------------------------------------------

function qrm(state, decisions) {
  const round = state.last_reconcile;
  const pods = state.pods ?? [], owners = cpusOf(state);
  return [
    numbers([
      ["Node", nodeLink(state.node)], ["Mode", [state.mode, `${state.policy}, scope ${state.scope}`]],
      ["Pods", [String(pods.length), `${count((state.inadmissible ?? []).length, "inadmissible", "inadmissible")}`]],
      ["Last reconciliation", round ? [clock(round.time), round.trouble || `${round.applied.length} applied`] : "–"],
    ]),
    el("section.card", {}, el("h2", {}, "CPUs"), socketsOf(state, owners)),
    el("section.card", {}, el("h2", {}, "Pods"), table("Pods of the manager", [["Pod"], ["Role"], ["Container"], ["CPUs"], ["Memory"], ["State", "long"]],
      pods.flatMap((pod) => Object.entries(pod.containers).map(([name, given]) => [linked(pod.pod), pod.role || "none", name,
        given.cpu?.allocation_result || "–", given.memory ? bytes(given.memory.allocated_quantity) : "–", stateOf(pod, name)])))),
    (state.inadmissible ?? []).length ? el("section.card", {}, el("h2", {}, "Inadmissible"), table("Inadmissible", [["Pod"], ["Reason"], ["Message", "long"]],
      state.inadmissible.map((each) => [linked(each.pod), each.reason, each.message]))) : null,
    el("section.card", {}, el("h2", {}, "Plug-ins"), table("Plug-ins", [["Resource"], ["Live"], ["Type"], ["Rejected", "long"]],
      Object.entries(state.plugins).map(([name, each]) => [name, each.live ? "yes" : "no", each.builtin ? "built-in" : "external", each.refused || "–"]))),
    el("section.card", {}, el("h2", {}, "Last decisions"), last(decisions)),
  ].filter(Boolean);
}

/** Whether a pod was admitted, and the resources that its container lacks. */
function stateOf(pod, container) {
  const lacks = Object.entries(pod.without?.[container] ?? {}).map(([resource, why]) => `; without ${resource}: ${why}`);
  return (pod.admitted ? "admitted" : pod.reason) + lacks.join("");
}

function last({ admissions, resize }) {
  return el("div.stack", {}, resize ? el("dl.steps", {}, Object.entries(resize).map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, name === "time" ? clock(value) : plain(value))]).flat()) : el("p.quiet", {}, "No pool is resized by load."),
  table("Admissions", [["Pod"], ["Admitted"], ["Placement", "long"], ["Reason", "long"]], admissions.slice(0, MOST).map((each) =>
    [linked(each.pod), plain(each.admitted), placed(each.containers ?? {}), each.message || each.reason || "–"]), { empty: "none yet" }));
}

/** The NUMA nodes that were decided for each resource of each container. */
function placed(containers) {
  return Object.entries(containers).flatMap(([name, resources]) => Object.entries(resources).map(([resource, { decided }]) =>
    (decided?.nodes ? `${name}: ${resource} on NUMA ${decided.nodes.join(", ")}` : `${name}: ${resource} on any NUMA node`))).join("; ") || "–";
}
