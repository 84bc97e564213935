// What an operator looks at first: whether all is well, what needs attention, how far the running
// jobs are, what waits and why.

import {attention} from "../model/attention.js";
import {capacity} from "../model/capacity.js";
import {coverage, restText, verdict} from "../model/coverage.js";
import {count, formatDuration, formatNumber, parseTime} from "../model/format.js";
import {worstStraggler} from "../model/lag.js";
import {hasEnded, stateName, waits} from "../model/names.js";
import {Rates} from "../model/rates.js";
import {get} from "../net/api.js";
import {FailedJobs} from "../net/failed_jobs.js";
import {serverNow, setServerClock} from "../net/link.js";
import {pace, poll} from "../net/poll.js";
import {badge, setBadge} from "../ui/badge.js";
import {bar, progressFacts, setBar} from "../ui/bar.js";
import {el, keyed, measured, setAttribute, setText, show} from "../ui/dom.js";
import {eventTable} from "../ui/event_table.js";

const MOST_JOBS = 200;
// The page of jobs has all of them.
const MOST_RUNNING = 60;
const MOST_WAITING = 20;

export class OverviewView {
  title = "Overview";
  #rates = new Rates();
  #failed = new FailedJobs();

  constructor() {
    this.verdict = el("p", {class: "verdict", role: "status"}, "Asking the coordinator …");
    this.attention = el("ul", {class: "attention", "aria-label": "What needs attention"});
    this.tiles = el("dl", {class: "tiles"});
    this.running = el("ul", {class: "cards"});
    this.waiting = el("ul", {class: "plain-list"});
    this.restRun = el("p", {class: "muted rest"});
    this.restWait = el("p", {class: "muted rest"});
    this.events = eventTable();
    const section = (id, title, ...parts) =>
        el("section", {"aria-labelledby": id}, el("h2", {id}, title), ...parts);
    this.element =
        el("div", {class: "view"}, el("h1", {tabindex: "-1"}, "Overview"),
           section("health", "Health", this.verdict, this.attention, this.tiles),
           section("running", "Running", this.running, this.restRun),
           section("waiting", "Waiting", this.waiting, this.restWait),
           section("latest", "Latest events", this.events.element));
  }

  start() {
    this.polling = poll(async (signal) => {
      const [cluster, nodes, jobs] = await Promise.all([
        get("/cluster", {events: 20}, signal), get("/nodes", {}, signal),
        get("/jobs", {runningFirst: "true", pageSize: MOST_JOBS}, signal)
      ]);
      setServerClock(cluster.now);
      this.seen = nodes.nodes.length + jobs.jobs.length;
      this.covers = coverage(jobs.jobs, jobs.nextPageToken, cluster.jobsActive);
      const failed = jobs.nextPageToken ? this.#failed : {jobs: [], hasAll: true};
      const show = () =>
          measured("overview", () => this.#update(cluster, nodes.nodes, jobs.jobs, failed));
      show();
      // It may take several answers, and what has come is shown meanwhile.
      if (jobs.nextPageToken && await this.#failed.ask(signal)) show();
    }, () => pace(this.seen ?? 0), (error) => setText(this.verdict, error.message));
  }

  stop() {
    this.polling.stop();
  }

  // failed: jobs that failed, some of which may be in `jobs` too.
  #update(cluster, nodes, jobs, failed) {
    const now = serverNow();
    this.#rates.add(jobs, now);
    const known = new Set(jobs.map((job) => job.jobId));
    const others = failed.jobs.filter((job) => !known.has(job.jobId));
    const problems = attention(cluster, nodes, [...jobs, ...others], now);
    const ofFailed = {count: failed.jobs.length, hasAll: failed.hasAll};
    setText(this.verdict, verdict(problems.length, this.covers, ofFailed));
    setAttribute(this.verdict, "data-tone", problems.length ? problems[0].tone : "good");
    keyed(
        this.attention, problems, (one) => one.key,
        () => el("li", {}, badge(), el("a", {}), el("span", {})), (node, one) => {
          setBadge(node.children[0], one.state, one.word, one.tone);
          setAttribute(node.children[1], "href", one.href);
          setText(node.children[1], one.name);
          setText(node.children[2], ` ${one.text}`);
        });
    this.#tiles(cluster, nodes, jobs, now);
    const running = jobs.filter((job) => !hasEnded(job) && !waits(job));
    const waiting = jobs.filter(waits);
    const {isCut, isCutRunning} = this.covers;
    sayRest(this.restRun, "runs", running.length, MOST_RUNNING, isCutRunning);
    sayRest(this.restWait, "waits", waiting.length, MOST_WAITING, isCut);
    keyed(
        this.running, running.slice(0, MOST_RUNNING), (job) => job.jobId, card,
        (node, job) => updateCard(node, job, this.#rates.of(job)));
    keyed(
        this.waiting, waiting.slice(0, MOST_WAITING), (job) => job.jobId, waitingRow,
        (node, job) => {
          setBadge(node.children[0], job.state);
          setText(
              node.children[2],
              ` ${job.submitter}, for ${
                  formatDuration((now - parseTime(job.submittedAt)) / 1000)}`);
          setText(node.children[3], job.reason || "");
        });
    this.events.update(cluster.events, now);
  }

  #tiles(cluster, nodes, jobs, now) {
    const {slots, slotsUsed, gpus, gpusUsed} = capacity(nodes);
    const counted = (of, isCut) => `${jobs.filter(of).length}${isCut ? "+" : ""}`;
    const {isCut, isCutRunning} = this.covers;
    const leader = cluster.coordinators?.find((one) => one.leads);
    const tiles = [
      [
        "Coordinator", leader ? leader.name : `term ${cluster.term}`,
        `up ${formatDuration((now - parseTime(cluster.startedAt)) / 1000)}`
      ],
      ["Nodes", `${cluster.nodesHealthy} of ${cluster.nodesTotal}`, "healthy"],
      ["Slots", `${slotsUsed} of ${slots}`, "in use"],
      ...(gpus ? [["GPUs", `${gpusUsed} of ${gpus}`, "in use"]] : []),
      ["Jobs", counted((job) => stateName(job.state) === "RUNNING", isCutRunning), "running"],
      ["Queue", counted(waits, isCut), "waiting"],
    ];
    keyed(
        this.tiles, tiles, ([name]) => name,
        ([name]) =>
            el("div", {class: "tile"}, el("dt", {}, name), el("dd", {}, el("strong"), el("span"))),
        (node, [, value, unit]) => {
          setText(node.lastChild.children[0], value);
          setText(node.lastChild.children[1], ` ${unit}`);
        });
  }
}

function sayRest(node, verb, jobs, most, isCut) {
  const rest = restText(jobs, most, isCut);
  show(node, Boolean(rest) || jobs === 0);
  if (rest)
    node.replaceChildren(rest, el("a", {href: "#/jobs"}, "all jobs"));
  else if (jobs === 0)
    setText(node, `No job ${verb}.`);
}

function card(job) {
  return el(
      "li", {class: "card"},
      el("div", {class: "card-head"}, badge(),
         el("a", {href: `#/jobs/${encodeURIComponent(job.jobId)}`}, job.jobId),
         el("span", {class: "muted"})),
      bar(job.jobId), el("p", {class: "facts"}), el("p", {class: "card-note"}));
}

function updateCard(node, job, speed) {
  const [head, progressBar, facts, note] = node.children;
  setBadge(head.children[0], job.state);
  setText(
      head.children[2],
      `${job.submitter}, ${count(job.worldSize, "rank")}${
          job.restarts ? `, ${count(job.restarts, "restart")}` : ""}`);
  setBar(progressBar, job.progress);
  setText(facts, progressFacts(job, speed).join("  ·  ") || "no report yet");
  const slow = worstStraggler(job);
  const text = job.hang ||
      (slow ? `rank ${slow.rank} on ${slow.nodeName} is slow: it computes ${
                  formatNumber(slow.computesSeconds)} s of each step` :
              job.reason);
  setText(note, text || "");
  setAttribute(note, "data-tone", job.hang || slow ? "warn" : null);
  show(note, Boolean(text));
}

function waitingRow(job) {
  return el(
      "li", {class: "waiting-row"}, badge(),
      el("a", {href: `#/jobs/${encodeURIComponent(job.jobId)}`}, job.jobId),
      el("span", {class: "muted"}), el("p", {}));
}
