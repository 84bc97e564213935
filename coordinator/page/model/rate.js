// How fast a job makes steps, and how long it takes from here on. Pure.

import {stateName} from "./names.js";

const WINDOW_SECONDS = 15;
// Steps have stopped when the last is this many intervals old, and at least WINDOW_SECONDS.
const IDLE_INTERVALS = 5;

// Samples of (seconds, step), newest last. Steps that go back, as after a restart, begin anew.
export class Rate {
  #samples = [];

  add(seconds, step) {
    if (!Number.isFinite(seconds) || !Number.isFinite(step)) return;
    const last = this.#samples.at(-1);
    if (last && (step < last.step || seconds < last.seconds)) this.#samples = [];
    if (last && step === last.step) return;
    this.#samples.push({seconds, step});
    while (this.#samples.length > 2 && seconds - this.#samples[0].seconds > WINDOW_SECONDS)
      this.#samples.shift();
  }

  // Steps per second; 0 where nothing is known.
  value() {
    if (this.#samples.length < 2) return 0;
    const first = this.#samples[0];
    const last = this.#samples.at(-1);
    return last.seconds > first.seconds ?
        (last.step - first.step) / (last.seconds - first.seconds) :
        0;
  }

  // Seconds of the last step.
  last() {
    return this.#samples.at(-1)?.seconds ?? NaN;
  }

  isIdle(now) {
    if (this.#samples.length < 2) return false;
    const intervals = this.#samples.slice(1).map(
        ({seconds}, i) => seconds - this.#samples[i].seconds);
    return now - this.last() > Math.max(WINDOW_SECONDS, IDLE_INTERVALS * Math.max(...intervals));
  }
}

export function rateOfCurve(curve) {
  const rate = new Rate();
  for (const point of curve.slice(-64)) rate.add(Date.parse(point.at) / 1000, point.step);
  return rate;
}

// {stepsPerSecond, idleSince}: 0 and NaN where nothing is known. Only a job that runs makes
// steps; `idleSince` is the time of its last one, where it makes none.
export function speedOf(job, rate, nowMs) {
  if (!rate || stateName(job.state) !== "RUNNING") return {stepsPerSecond: 0, idleSince: NaN};
  if (job.hang || job.pausedSince || rate.isIdle(nowMs / 1000))
    return {stepsPerSecond: 0, idleSince: rate.last()};
  return {stepsPerSecond: rate.value(), idleSince: NaN};
}

// Seconds, or NaN where nobody can tell.
export function remaining(progress, stepsPerSecond) {
  if (!progress?.totalSteps || progress.step === undefined || !(stepsPerSecond > 0)) return NaN;
  return Math.max(0, progress.totalSteps - progress.step) / stepsPerSecond;
}

// 0 to 1, or NaN where the job does not say how many steps there are.
export function fraction(progress) {
  if (!progress?.totalSteps || progress.step === undefined) return NaN;
  return Math.min(1, Math.max(0, progress.step / progress.totalSteps));
}

// Seconds that the ranks have run: earlier generations, then this one.
export function runSeconds(job, nowMs) {
  const before = job.runTime ? Number.parseFloat(job.runTime) : 0;
  return before +
      (job.runningSince ? Math.max(0, (nowMs - Date.parse(job.runningSince)) / 1000) : 0);
}
