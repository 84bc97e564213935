// Two jobs' curves over each other, and what differs in what they were asked to do.

import {submitCommand} from "../model/command.js";
import {pointsOf, seriesNames} from "../model/curves.js";
import {formatDuration, formatNumber} from "../model/format.js";
import {hasEnded} from "../model/names.js";
import {meanRate, rateOfCurve, runSeconds, speedOf} from "../model/rate.js";
import {get} from "../net/api.js";
import {serverNow} from "../net/link.js";
import {poll} from "../net/poll.js";
import {badge, setBadge} from "../ui/badge.js";
import {Curve} from "../ui/curve.js";
import {el, keyed, measured, setAttribute, setText, show} from "../ui/dom.js";

const PERIOD_MS = 3000;

export class CompareView {
  #curves = new Map();

  constructor({parameters}) {
    this.ids = parameters;
    this.title = `${parameters[0]} and ${parameters[1]}`;
    this.problem = el("p", {class: "problem", role: "alert", hidden: true});
    this.curves = el("div", {class: "curves"});
    this.none = el("p", {class: "muted", hidden: true}, "Neither has reported a number yet.");
    this.body = el("tbody");
    const heads = this.ids.map(
        (id, i) => el(
            "th", {scope: "col"},
            el("a", {href: `#/jobs/${encodeURIComponent(id)}`, class: `legend series-${i}`}, id)));
    this.element = el(
        "div", {class: "view"}, el("h1", {tabindex: "-1"}, "Compare two jobs"), this.problem,
        el("section", {"aria-labelledby": "both-curves"}, el("h2", {id: "both-curves"}, "Curves"),
           this.curves, this.none),
        el("section", {"aria-labelledby": "differences"},
           el("h2", {id: "differences"}, "What differs"),
           el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "What differs"},
              el("table", {class: "differences"},
                 el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "Of each"), ...heads)),
                 this.body))));
  }

  start() {
    this.polling = poll(
        async (signal) => {
          const answers = await Promise.all(
              this.ids.map((id) => get(`/jobs/${encodeURIComponent(id)}`, {maxRanks: 1}, signal)));
          measured("compare", () => this.#update(answers));
        },
        PERIOD_MS,
        (error) => {
          setText(this.problem, error.message);
          show(this.problem, true);
        });
  }

  stop() {
    this.polling.stop();
  }

  #update(answers) {
    const names = [...new Set(answers.flatMap(({curve}) => seriesNames(curve)))];
    show(this.none, !names.length);
    for (const name of names)
      if (!this.#curves.has(name))
        this.#curves.set(name, new Curve(name, name === "loss" ? 260 : 170));
    keyed(this.curves, names, (name) => name, (name) => this.#curves.get(name).element);
    for (const name of names) {
      this.#curves.get(name).update(
          answers.map(({curve}, i) => ({label: this.ids[i], points: pointsOf(curve, name)})));
    }
    keyed(
        this.body, differences(answers), ([name]) => name,
        ([name]) => el("tr", {}, el("th", {scope: "row"}, name), el("td"), el("td")),
        (row, [name, ...values]) => {
          values.forEach((value, i) => {
            if (name === "state") {
              if (!row.children[i + 1].firstChild) row.children[i + 1].append(badge());
              setBadge(row.children[i + 1].firstChild, value);
            } else if (name === "command") {
              markWords(row.children[i + 1], value, values[1 - i]);
            } else {
              setText(row.children[i + 1], value);
            }
          });
          setAttribute(row, "data-differs", values[0] === values[1] ? null : "");
        });
  }
}

function differences(answers) {
  const now = serverNow();
  const rows = [
    ["state", ({job}) => job.state],
    ["ranks", ({job}) => String(job.worldSize || "–")],
    [
      "step",
      ({job}) =>
          (job.progress?.step === undefined ?
               "–" :
               `${job.progress.step}${
                   job.progress.totalSteps ? ` of ${job.progress.totalSteps}` : ""}`)
    ],
    ["loss", ({job}) => formatNumber(job.progress?.loss)],
    [
      "steps per second",
      ({job, curve}) => formatNumber(
          (hasEnded(job) ? meanRate(curve) : rateNow(job, curve, now)) ||
          undefined)
    ],
    ["ran", ({job}) => (job.startedAt ? formatDuration(runSeconds(job, now)) : "–")],
    ["restarts", ({job}) => String(job.restarts)],
    ["user", ({job}) => job.submitter],
    ["command", ({job}) => submitCommand(job.spec)],
  ];
  return rows.map(([name, of]) => [name, of(answers[0]), of(answers[1])]);
}

// Words that the other command has not are marked.
function markWords(cell, command, other) {
  const key = `${command}\n${other}`;
  if (cell.dataset.words === key) return;
  cell.dataset.words = key;
  const known = new Set(other.split(" "));
  cell.replaceChildren(
      el("code", {},
         ...command.split(" ").flatMap(
             (word) => [known.has(word) ? word : el("mark", {}, word), " "])));
}

function rateNow(job, curve, now) {
  const rate = rateOfCurve(curve);
  rate.look(now / 1000, job.progress?.step);
  return speedOf(job, rate, now).stepsPerSecond;
}
