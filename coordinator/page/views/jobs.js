// All jobs: filtered by state and user, searched, each with why it waits or failed.

import {formatAgo, formatDuration, parseTime} from "../model/format.js";
import {hasEnded, JOB_STATES} from "../model/names.js";
import {runSeconds} from "../model/rate.js";
import {Rates} from "../model/rates.js";
import {get} from "../net/api.js";
import {serverNow} from "../net/link.js";
import {pace, poll} from "../net/poll.js";
import {badge, setBadge} from "../ui/badge.js";
import {bar, progressFacts, setBar} from "../ui/bar.js";
import {el, headedTable, keyed, measured, setText, show} from "../ui/dom.js";

const PAGE = 100;

const CHOICES = [
  ["active", "not ended"], ["", "all"], ...JOB_STATES.map((state) => [state, state.toLowerCase()])
];

export class JobsView {
  title = "Jobs";
  #rates = new Rates();
  #pages = 1;
  #jobs = [];
  #users = new Set();

  constructor() {
    this.state = el("select", {}, ...CHOICES.map(([value, text]) => new Option(text, value)));
    this.state.value = "";
    this.user = el("select", {}, new Option("everybody", ""));
    this.search = el("input", {type: "search", placeholder: "id, command or reason"});
    this.summary = el("p", {class: "muted", role: "status"});
    this.body = el("tbody", {role: "rowgroup"});
    this.more = el("button", {type: "button", hidden: true}, "Older jobs");
    this.problem = el("p", {class: "problem", role: "alert", hidden: true});
    const titles = ["Job", "State", "Progress", "User", "Ranks", "Submitted", "Ran", "Reason"];
    const table = headedTable("jobs", "Jobs", titles, this.body);
    const field = (label, input) => el("label", {class: "inline"}, `${label} `, input);
    this.element = el(
        "div", {class: "view"}, el("h1", {tabindex: "-1"}, "Jobs"),
        el("form", {class: "controls", role: "search", onsubmit: (event) => event.preventDefault()},
           field("State", this.state), field("User", this.user), field("Search", this.search)),
        this.problem, this.summary,
        el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of jobs"},
           table),
        this.more);
    for (const input of [this.state, this.user])
      input.addEventListener("change", () => {
        this.#pages = 1;
        this.polling.now();
      });
    this.search.addEventListener("input", () => this.#show());
    this.more.addEventListener("click", () => {
      this.#pages += 1;
      this.polling.now();
    });
  }

  start() {
    this.polling = poll((signal) => this.#ask(signal), () => pace(this.#jobs.length), (error) => {
      setText(this.problem, error.message);
      show(this.problem, true);
    });
  }

  stop() {
    this.polling.stop();
  }

  async #ask(signal) {
    const chosen = this.state.value;
    const query = {
      runningFirst: "true",
      pageSize: PAGE,
      user: this.user.value,
      activeOnly: chosen === "active" ? "true" : "",
      state: chosen && chosen !== "active" ? `JOB_STATE_${chosen}` : ""
    };
    const jobs = [];
    let token = "";
    for (let page = 0; page < this.#pages; page += 1) {
      const answer = await get("/jobs", {...query, pageToken: token}, signal);
      jobs.push(...answer.jobs);
      token = answer.nextPageToken;
      if (!token) break;
    }
    show(this.more, Boolean(token));
    this.#jobs = jobs;
    this.#rates.add(jobs, serverNow());
    measured("jobs", () => this.#show());
  }

  #show() {
    for (const {submitter} of this.#jobs) {
      if (!submitter || this.#users.has(submitter)) continue;
      this.#users.add(submitter);
      this.user.add(new Option(submitter, submitter));
    }
    const wanted = this.search.value.trim().toLowerCase();
    const shown = wanted ? this.#jobs.filter((job) => textOf(job).includes(wanted)) : this.#jobs;
    setText(
        this.summary,
        `${shown.length === this.#jobs.length ? "" : `${shown.length} of `}${
            this.#jobs.length} jobs${this.more.hidden ? "" : ", and older ones"}`);
    const now = serverNow();
    keyed(
        this.body, shown, (job) => job.jobId, row,
        (node, job) => updateRow(node, job, this.#rates.of(job), now));
  }
}

function textOf(job) {
  return [
    job.jobId, job.spec?.name, job.spec?.shippedJob, ...(job.spec?.command ?? []), job.reason,
    job.submitter
  ].join(" ")
      .toLowerCase();
}

function row(job) {
  const cell = (name, label, ...children) =>
      el("td", {role: "cell", class: name, "data-label": label}, ...children);
  return el(
      "tr", {role: "row"},
      el("th", {role: "rowheader", scope: "row"},
         el("a", {href: `#/jobs/${encodeURIComponent(job.jobId)}`}, job.jobId)),
      cell(null, null, badge()),
      cell("c-progress", null, bar(job.jobId), el("span", {class: "facts"})), cell(null, "user"),
      cell("number", "ranks"), cell("when", "submitted"), cell("when", "ran"),
      cell("c-reason", null));
}

function updateRow(node, job, speed, now) {
  const [, state, progress, user, ranks, submitted, ran, reason] = node.children;
  setBadge(state.firstChild, job.state);
  const facts = progressFacts(job, speed);
  show(progress.firstChild, facts.length > 0 && !hasEnded(job));
  setBar(progress.firstChild, job.progress);
  setText(progress.lastChild, facts.join(" · "));
  setText(user, job.submitter);
  setText(ranks, job.worldSize || "–");
  setText(submitted, formatAgo((now - parseTime(job.submittedAt)) / 1000));
  setText(ran, job.startedAt ? formatDuration(runSeconds(job, now)) : "–");
  setText(reason, job.hang || job.reason);
}
