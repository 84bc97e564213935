// How fast a job makes steps, and how long it takes from here on. Pure.

import {stateName} from "./names.js";

const WINDOW_SECONDS = 15;
// Steps have stopped when the last is this many intervals old, and at least WINDOW_SECONDS.
const IDLE_INTERVALS = 5;

// A job in another state makes no steps. The command has the same (client/render/progress.cc).
function makesSteps(job) {
  return stateName(job.state) === "RUNNING" && !job.hang && !job.pausedSince;
}

// Samples of (seconds, step), newest last: when a step was reported. Steps that go back, as after a
// restart, begin anew; so do those after a time in which the job made none.
export class Rate {
  // `took`: seconds since the sample before; or, where nobody looked meanwhile, of the longest
  // interval before.
  #samples = [];
  #seen = NaN;
  #seenSince = NaN;
  #generation = NaN;
  #makesSteps = true;

  // The step of the last look; NaN before the first one.
  get seen() {
    return this.#seen;
  }

  // Since when looks find the step, where nobody knows when it was reported; else NaN.
  get seenSince() {
    return this.#seenSince;
  }

  // A look at a job: at its state, then at its step.
  lookAt(job, seconds, isWatched) {
    const makes = makesSteps(job);
    const isRestarted = !Number.isNaN(this.#generation) && this.#generation !== job.generation;
    if (isRestarted || (makes && !this.#makesSteps)) this.#samples = [];
    this.#generation = job.generation;
    this.#makesSteps = makes;
    this.look(seconds, job.progress?.step, isWatched);
  }

  // Only another step than that of the look before is a report of this moment, and only where no
  // look between the two was left out.
  look(seconds, step, isWatched = true) {
    if (!Number.isFinite(seconds) || !Number.isFinite(step) || step === this.#seen) return;
    if (isWatched && Number.isFinite(this.#seen)) {
      if (Number.isNaN(this.#seenSince)) {
        this.add(seconds, step);
      } else {
        // What the job did between the last sample and the first look is not known.
        if (!this.#isInPace(seconds)) this.#samples = [];
        this.#seenSince = NaN;
        this.#push(seconds, step, this.#longest());
      }
    } else {
      const last = this.#samples.at(-1);
      this.#seenSince = step === last?.step ? NaN : seconds;
      if (step < last?.step) this.#samples = [];
    }
    this.#seen = step;
  }

  // A step that was reported at that time.
  add(seconds, step) {
    const last = this.#samples.at(-1);
    if (!Number.isFinite(seconds) || !Number.isFinite(step) || step === last?.step) return;
    if (this.isIdle(seconds)) this.#samples = [];
    this.#push(seconds, step, seconds - last?.seconds);
  }

  #push(seconds, step, took) {
    const last = this.#samples.at(-1);
    if (last && (step <= last.step || seconds < last.seconds)) this.#samples = [];
    this.#samples.push({seconds, step, took});
    while (this.#samples.length > 2 && seconds - this.#samples[0].seconds > WINDOW_SECONDS)
      this.#samples.shift();
  }

  // Steps per second at that time; 0 where nothing is known.
  at(now) {
    return this.#isInPace(now) ? this.value() : 0;
  }

  // Steps per second of the samples.
  value() {
    if (this.#samples.length < 2) return 0;
    const first = this.#samples[0];
    const last = this.#samples.at(-1);
    return last.seconds > first.seconds ?
        (last.step - first.step) / (last.seconds - first.seconds) :
        0;
  }

  // Seconds of the last step; NaN where nobody knows.
  last() {
    return Number.isNaN(this.#seenSince) ? this.#samples.at(-1)?.seconds ?? NaN : NaN;
  }

  isIdle(now) {
    if (this.#samples.length < 2) return false;
    const since = Number.isNaN(this.#seenSince) ? this.last() : this.#seenSince;
    return now - since > Math.max(WINDOW_SECONDS, IDLE_INTERVALS * this.#longest());
  }

  // Whether the step that is seen is the one that is due by now, where nobody knows when it was
  // reported. The next report may be as far away as the longest interval.
  #isInPace(now) {
    if (Number.isNaN(this.#seenSince)) return true;
    const rate = this.value();
    if (!(rate > 0)) return false;
    const last = this.#samples.at(-1);
    const due = last.seconds + (this.#seen - last.step) / rate;
    return Math.abs(now - due) <= this.#longest() + WINDOW_SECONDS;
  }

  // Seconds of the longest interval.
  #longest() {
    return Math.max(0, ...this.#samples.slice(1).map(({took}) => took));
  }
}

// The points of a curve are reports, with their times.
export function rateOfCurve(curve) {
  const rate = new Rate();
  for (const point of curve.slice(-64)) rate.add(Date.parse(point.at) / 1000, point.step);
  return rate;
}

// Steps per second of the whole curve; 0 where nothing is known. Where steps go back, as after a
// restart or in each epoch, nobody knows how many lie between two points.
export function meanRate(curve) {
  let [steps, seconds] = [0, 0];
  for (let i = 1; i < curve.length; i += 1) {
    const [before, point] = [curve[i - 1], curve[i]];
    const took = (Date.parse(point.at) - Date.parse(before.at)) / 1000;
    if (!(point.step >= before.step) || !(took >= 0)) continue;
    steps += point.step - before.step;
    seconds += took;
  }
  return seconds > 0 ? steps / seconds : 0;
}

// {stepsPerSecond, idleSince, seenSince}: 0 and NaN where nothing is known. Only a job that runs
// makes steps. Where it makes none, `idleSince` is the time of its last one; where that is not
// known, `seenSince` is the time of the look from which on none was seen.
export function speedOf(job, rate, nowMs) {
  const now = nowMs / 1000;
  if (!rate || stateName(job.state) !== "RUNNING")
    return {stepsPerSecond: 0, idleSince: NaN, seenSince: NaN};
  if (!makesSteps(job) || rate.isIdle(now))
    return {stepsPerSecond: 0, idleSince: rate.last(), seenSince: rate.seenSince};
  return {stepsPerSecond: rate.at(now), idleSince: NaN, seenSince: NaN};
}

// Seconds; NaN where nobody can tell, or no step is left.
export function remaining(progress, stepsPerSecond) {
  const steps = progress?.totalSteps - progress?.step;
  return steps > 0 && stepsPerSecond > 0 ? steps / stepsPerSecond : NaN;
}

// 0 to 1, or NaN where the job does not say how many steps there are.
export function fraction(progress) {
  if (!progress?.totalSteps || progress.step === undefined) return NaN;
  return Math.min(1, Math.max(0, progress.step / progress.totalSteps));
}

// Rounded down, so that 100 % is the end. 29 of 100 steps are 29 %, although 0.29 * 100 is a little
// less in binary.
export function wholePercent(part) {
  return Math.floor(part * 100 + 1e-9);
}

// Seconds that the ranks have run: earlier generations, then this one.
export function runSeconds(job, nowMs) {
  const before = job.runTime ? Number.parseFloat(job.runTime) : 0;
  return before +
      (job.runningSince ? Math.max(0, (nowMs - Date.parse(job.runningSince)) / 1000) : 0);
}
