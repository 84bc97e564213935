// Where the job stands: its state with the reason, progress, speed, the time left.

import {formatClock, formatDuration, formatIdle, formatNumber, formatRate, parseDuration, parseTime} from "../../model/format.js";
import {hasEnded, stateName} from "../../model/names.js";
import {fraction, remaining, runSeconds, wholePercent} from "../../model/rate.js";
import {badge, setBadge} from "../../ui/badge.js";
import {bar, setBar} from "../../ui/bar.js";
import {el, keyed, setAttribute, setText, show} from "../../ui/dom.js";

export class JobHead {
  constructor(id) {
    this.badge = badge();
    this.title = el("h1", {tabindex: "-1"}, id);
    this.reason = el("p", {class: "reason", hidden: true});
    this.bar = bar(id);
    this.facts = el("dl", {class: "tiles"});
    this.element =
        el("section", {"aria-label": "State and progress"}, this.reason, this.bar, this.facts);
  }

  update(job, speed, now) {
    setBadge(this.badge, job.state);
    // What failed first stands below, with its lines.
    const reason = job.hang || (job.failure?.message === job.reason ? "" : job.reason);
    setText(this.reason, reason);
    setAttribute(this.reason, "data-tone", job.hang ? "bad" : null);
    show(this.reason, Boolean(reason));
    setAttribute(this.element, "data-state", stateName(job.state));
    setBar(this.bar, job.progress);
    show(this.bar, job.progress?.step !== undefined);
    keyed(
        this.facts, facts(job, speed, now), ([name]) => name,
        ([name]) =>
            el("div", {class: "tile"}, el("dt", {}, name), el("dd", {}, el("strong"), el("span"))),
        (node, [name, value, unit, tone]) => {
          setText(node.lastChild.children[0], value);
          setText(node.lastChild.children[1], unit ? ` ${unit}` : "");
          setAttribute(node, "data-tone", tone);
          setAttribute(node, "data-fact", name);
        });
  }
}

// [[name, value, unit, tone]]
function facts(job, speed, now) {
  const list = [];
  const {stepsPerSecond} = speed;
  const idle = formatIdle(speed);
  const {progress} = job;
  const ended = hasEnded(job);
  const part = fraction(progress);
  if (!Number.isNaN(part))
    list.push([
      "Progress", `${wholePercent(part)} %`,
      `${progress.step} of ${progress.totalSteps} steps`
    ]);
  else if (progress?.step !== undefined)
    list.push(["Progress", String(progress.step), "steps"]);
  const left = remaining(progress, stepsPerSecond);
  if (Number.isFinite(left))
    list.push([
      "Time left", formatDuration(Math.ceil(left)),
      `until ${formatClock(now + left * 1000).slice(0, -3)}`
    ]);
  if (progress?.loss !== undefined)
    list.push([
      "Loss", formatNumber(progress.loss), "", typeof progress.loss === "string" ? "bad" : null
    ]);
  if (stepsPerSecond > 0)
    list.push(["Speed", ...formatRate(stepsPerSecond).split(" ")]);
  else if (idle)
    list.push(["Speed", "no step", idle, "warn"]);
  const limit = parseDuration(job.spec?.timeLimit);
  const ran = runSeconds(job, now);
  if (job.startedAt)
    list.push(["Ran", formatDuration(ran), limit ? `of ${formatDuration(limit)}` : ""]);
  else if (!ended)
    list.push([
      "Waits", formatDuration((now - parseTime(job.submittedAt)) / 1000),
      `since ${formatClock(parseTime(job.submittedAt))}`
    ]);
  if (job.worldSize)
    list.push(
        ["Ranks", String(job.worldSize), job.generation > 1 ? `generation ${job.generation}` : ""]);
  if (job.restarts || job.spec?.maxRestarts)
    list.push([
      "Restarts", String(job.restarts), `of ${job.spec?.maxRestarts ?? 0}`,
      job.restarts ? "warn" : null
    ]);
  if (progress?.note) list.push(["Says", progress.note, ""]);
  return list;
}
