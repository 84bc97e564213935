// The cluster: who leads, each node with its slots, its GPUs and what runs there, and what
// happened.

import {coverage} from "../model/coverage.js";
import {
  apiDuration,
  count,
  formatAgo,
  formatBytes,
  formatDuration,
  parseTime
} from "../model/format.js";
import {get, post} from "../net/api.js";
import {serverNow, setServerClock} from "../net/link.js";
import {Placements} from "../net/placements.js";
import {pace, poll} from "../net/poll.js";
import {badge, setBadge} from "../ui/badge.js";
import {confirmAction} from "../ui/dialog.js";
import {announce, el, keyed, measured, setAttribute, setStyle, setText, show} from "../ui/dom.js";
import {eventTable} from "../ui/event_table.js";


export class NodesView {
  title = "Cluster";
  #placements = new Placements();

  constructor({me}) {
    this.me = me;
    this.coordinator = el("p", {});
    this.coordinators = el("ul", {class: "plain-list"});
    this.body = el("tbody");
    this.summary = el("p", {class: "muted"});
    this.problem = el("p", {class: "problem", role: "alert", hidden: true});
    this.events = eventTable();
    const titles =
        ["Node", "State", "Slots", "GPUs", "Memory", "What runs here", "Seen", "Notes", "Actions"];
    const table =
        el("table", {class: "nodes"}, el("caption", {class: "hidden-text"}, "Nodes"),
           el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", {scope: "col"}, title)))),
           this.body);
    const section = (id, title, ...parts) =>
        el("section", {"aria-labelledby": id}, el("h2", {id}, title), ...parts);
    this.element =
        el("div", {class: "view"}, el("h1", {tabindex: "-1"}, "Cluster"), this.problem,
           section("coordinators", "Coordinators", this.coordinator, this.coordinators),
           section(
               "nodes", "Nodes", this.summary,
               el("div",
                  {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of nodes"},
                  table)),
           section("events", "Events", this.events.element));
  }

  start() {
    this.polling = poll(async (signal) => {
      const [cluster, nodes, jobs] = await Promise.all([
        get("/cluster", {events: 100}, signal), get("/nodes", {}, signal),
        get("/jobs", {runningFirst: "true", activeOnly: "true", pageSize: 200}, signal)
      ]);
      setServerClock(cluster.now);
      const covers = coverage(jobs.jobs, jobs.nextPageToken, cluster.jobsActive);
      const update = () => measured("nodes", () => this.#update(cluster, nodes.nodes, covers));
      update();
      if (await this.#placements.learn(jobs.jobs, signal)) update();
    }, () => pace(this.body.childElementCount), (error) => this.#say(error));
  }

  stop() {
    this.polling.stop();
  }

  allowed() {
    this.polling.now();
  }

  #say(error) {
    setText(this.problem, error?.message ?? "");
    show(this.problem, Boolean(error));
  }

  #update(cluster, nodes, {looked, active, isCutRunning}) {
    const now = serverNow();
    setText(
        this.coordinator,
        `Version ${cluster.version}, term ${cluster.term}, up ${
            formatDuration((now - parseTime(cluster.startedAt)) / 1000)}` +
            `${cluster.stateEngine ? `, state in ${cluster.stateEngine}` : ""}${
                cluster.readOnlyReason ? `. Read only: ${cluster.readOnlyReason}` : ""}`);
    keyed(
        this.coordinators, cluster.coordinators ?? [], (one) => one.name,
        () => el("li", {}, badge(), el("span")), (node, one) => {
          setBadge(
              node.firstChild, one.leads ? "RUNNING" : "QUEUED", one.leads ? "LEADS" : "STANDS BY");
          setText(node.lastChild, ` ${one.name} at ${one.address}`);
        });
    setText(
        this.summary,
        `${cluster.nodesHealthy} of ${count(cluster.nodesTotal, "node")} healthy${
            isCutRunning ? `; ranks of ${looked} of ${active} active jobs are shown` : ""}`);
    keyed(
        this.body, nodes, (node) => node.nodeId, (node) => this.#row(node),
        (row, node) => this.#updateRow(row, node, now));
    this.events.update(cluster.events, now);
  }

  #row(node) {
    const meter = () =>
        el("div", {class: "meter"},
           el("div", {class: "bar", "aria-hidden": "true"}, el("div", {class: "bar-fill"})),
           el("span"));
    return el(
        "tr", {}, el("th", {scope: "row"}, node.name), el("td", {}, badge()), el("td", {}, meter()),
        el("td", {}, meter()), el("td", {}, meter()), el("td", {}, el("ul", {class: "plain-list"})),
        el("td", {class: "when"}), el("td", {class: "c-reason"}),
        el("td", {}, el("button", {type: "button", onclick: () => this.#drain(node)}),
           el("span", {class: "muted"})));
  }

  #updateRow(row, node, now) {
    const [, state, slots, gpus, memory, runs, seen, notes, actions] = row.children;
    setBadge(state.firstChild, node.state);
    const resources = node.resources ?? {};
    setMeter(
        slots.firstChild, node.slotsUsed, resources.slots ?? 0,
        `${node.slotsUsed} of ${resources.slots ?? 0}`);
    const models =
        [...new Set((resources.gpus ?? []).map((gpu) => gpu.model).filter(Boolean))].join(", ");
    const total = resources.gpus?.length ?? 0;
    setMeter(
        gpus.firstChild, node.gpusUsed?.length ?? 0, total,
        total ? `${node.gpusUsed?.length ?? 0} of ${total}${models ? ` ${models}` : ""}` : "none");
    setMeter(
        memory.firstChild, node.memoryUsedBytes, resources.memoryBytes ?? 0,
        node.memoryUsedBytes ?
            `${formatBytes(node.memoryUsedBytes)} of ${formatBytes(resources.memoryBytes)}` :
            formatBytes(resources.memoryBytes ?? 0));
    keyed(
        runs.firstChild, this.#placements.onNode(node.name), (one) => one.job,
        (one) =>
            el("li", {}, el("a", {href: `#/jobs/${encodeURIComponent(one.job)}`}, one.job),
               el("span", {class: "muted"})),
        (entry, one) => {
          setText(entry.lastChild, ` ${one.ranks.length > 1 ? "ranks" : "rank"} ${one.text}`);
        });
    setText(seen, formatAgo((now - parseTime(node.lastSeenAt)) / 1000));
    setText(notes, notesOf(node));
    const may = this.me.may.has(node.drained ? "UndrainNode" : "DrainNode");
    const button = actions.firstChild;
    setText(button, node.drained ? "Undrain" : "Drain");
    setAttribute(button, "aria-label", `${node.drained ? "Undrain" : "Drain"} ${node.name}`);
    button.dataset.drained = node.drained ? "yes" : "";
    show(button, may);
  }

  async #drain(node) {
    const row = [...this.body.children].find((one) => one.firstChild.textContent === node.name);
    const drained = row?.lastChild.firstChild.dataset.drained === "yes";
    const path = `/nodes/${encodeURIComponent(node.name)}`;
    const done = drained ?
        await confirmAction({
          title: `Undrain ${node.name}?`,
          text: "Jobs are placed there again.",
          confirm: `Undrain ${node.name}`,
          keep: "Leave it",
          act: () => post(`${path}/undrain`)
        }) :
        await confirmAction({
          title: `Drain ${node.name}?`,
          danger: true,
          confirm: `Drain ${node.name}`,
          keep: "Leave it",
          text:
              "Nothing new is placed there. Ranks that run there go on, unless a deadline is given.",
          fields: [
            {name: "reason", label: "Reason", type: "text"}, {
              name: "deadline",
              label: "Move its jobs after, for example 10m (empty: never)",
              type: "text"
            }
          ],
          act: ({reason, deadline}) =>
              post(`${path}/drain`, {reason, ...(deadline ? {deadline: apiDuration(deadline)} : {})})
        });
    if (done) announce(`${node.name} is ${drained ? "undrained" : "drained"}.`);
    this.polling.now();
  }
}

function setMeter(meter, used, total, text) {
  show(meter.firstChild, total > 0);
  setStyle(meter.firstChild.firstChild, "--part", total ? Math.min(1, used / total) : 0);
  setText(meter.lastChild, text);
}

function notesOf(node) {
  const labels =
      Object.entries(node.labels ?? {}).map(([name, value]) => (value ? `${name}=${value}` : name));
  const drained = node.drained ? [`${node.quarantined ? "in quarantine" : "drained"}: ${
                                     node.drainedBecause || "no reason given"}`] :
                                 [];
  return [...(node.problems ?? []), ...drained, node.drainReason, ...labels].filter(Boolean).join(
      "; ");
}
