// How far a job is, as a bar with its numbers.

import {formatDuration, formatIdle, formatNumber, formatRate} from "../model/format.js";
import {fraction, remaining, wholePercent} from "../model/rate.js";

import {el, setAttribute, setStyle} from "./dom.js";

export function bar(name) {
  return el(
      "div", {
        class: "bar",
        role: "progressbar",
        "aria-valuemin": "0",
        "aria-valuemax": "100",
        "aria-label": `Progress of ${name}`
      },
      el("div", {class: "bar-fill"}));
}

export function setBar(node, progress) {
  const part = fraction(progress);
  const percent = wholePercent(part);
  setAttribute(node, "aria-valuenow", Number.isNaN(part) ? null : percent);
  setAttribute(node, "data-unknown", Number.isNaN(part) ? "" : null);
  setStyle(node.firstChild, "--part", Number.isNaN(part) ? 0 : part);
}

// "40 %", "step 1200 of 3000", "85 step/s", "21s left", "loss 0.01"; speed: that of speedOf.
export function progressFacts({progress}, speed) {
  const {stepsPerSecond} = speed;
  const facts = [];
  const part = fraction(progress);
  if (!Number.isNaN(part)) facts.push(`${wholePercent(part)} %`);
  if (progress?.step !== undefined)
    facts.push(
        progress.totalSteps ? `step ${progress.step} of ${progress.totalSteps}` :
                              `step ${progress.step}`);
  const [rate, idle] = [formatRate(stepsPerSecond), formatIdle(speed)];
  if (rate) facts.push(rate);
  if (idle) facts.push(`no step ${idle}`);
  const left = remaining(progress, stepsPerSecond);
  if (Number.isFinite(left)) facts.push(`${formatDuration(Math.ceil(left))} left`);
  if (progress?.loss !== undefined) facts.push(`loss ${formatNumber(progress.loss)}`);
  return facts;
}
