// Which ranks are behind, and which one the others wait for. Pure.

import {stateName} from "./names.js";

// A report comes once a second: nobody is behind who is no further behind than two of them.
const LEVEL_SECONDS = [2, 10, 60];
const LEVEL_STEPS = [1, 5, 20];

export function highestStep(ranks) {
  let highest = -1;
  for (const rank of ranks) highest = Math.max(highest, rank.progress?.step ?? -1);
  return highest;
}

// 0 in step, 1 to 3 ever further behind.
export function lagLevel(lag, stepsPerSecond) {
  if (!(lag > 1)) return 0;
  const bounds = stepsPerSecond > 0 ? LEVEL_SECONDS : LEVEL_STEPS;
  const amount = stepsPerSecond > 0 ? lag / stepsPerSecond : lag;
  return bounds.filter((bound) => amount > bound).length;
}

// By how much more of its time a rank computes than the median rank, while the others wait.
const LEVEL_SHARES = [0.15, 0.3, 0.5];
// A share is that of so many seconds at least.
const LEAST_SECONDS = 1;

// {kind, text, level} of a rank's cell. kind: "run", "begin", "end", "fail", "lost".
// look: {highest, stepsPerSecond, failedRank, slow: set of ranks that the coordinator names}; with
// `shares` the cell is about the time that the rank computes, else its step.
export function cellOf(rank, {highest, stepsPerSecond, failedRank, slow, shares}) {
  const state = stateName(rank.state);
  if (state === "LOST") return {kind: "lost", level: 3, text: "lost"};
  if (rank.assignment.rank === failedRank) return {kind: "fail", level: 3, text: "failed"};
  if (state === "EXITED") {
    const bad = rank.exit && !rank.exit.teardown && (rank.exit.signal || rank.exit.exitCode);
    return bad ? {kind: "fail", level: 3, text: "failed"} : {kind: "end", level: 0, text: "ended"};
  }
  if (state !== "RUNNING") return {kind: "begin", level: 0, text: "starts"};
  const isSlow = slow.has(rank.assignment.rank);
  if (shares) return shareCell(shares, rank.assignment.rank, isSlow);
  const step = rank.progress?.step;
  if (step === undefined) return {kind: "run", level: 0, text: "runs"};
  const lag = highest - step;
  const level = Math.max(lagLevel(lag, stepsPerSecond), isSlow ? 2 : 0);
  return {kind: "run", level, text: lag === 0 ? `${step}` : `−${lag}`};
}

function shareCell(shares, rank, isSlow) {
  const waits = shares.get(rank);
  if (waits === undefined) return {kind: "run", level: isSlow ? 2 : 0, text: "–"};
  const more = medianOf([...shares.values()]) - waits;
  return {
    kind: "run",
    level: Math.max(LEVEL_SHARES.filter((bound) => more > bound).length, isSlow ? 2 : 0),
    text: percent(1 - waits)
  };
}

function medianOf(values) {
  return values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
}

// By rank: the share of its last steps in which it waited for others, 0 to 1. A rank says with a
// step how long it has waited in all: only from one of its steps to a later one is that a share of
// the time, and a look that finds no later step changes nothing.
export class WaitShares {
  shares = new Map();
  #generation = -1;
  // By rank: {at, waited} at a step; `at` in seconds of its host's clock.
  #samples = new Map();

  // Another look at the ranks of a generation.
  look(generation, ranks) {
    if (generation !== this.#generation) {
      this.shares.clear();
      this.#samples.clear();
    }
    this.#generation = generation;
    for (const {assignment, progress} of ranks) this.#add(assignment.rank, progress);
  }

  #add(rank, progress) {
    const now = {at: progress?.stepAtNanos / 1e9, waited: progress?.waitedSeconds};
    if (!Number.isFinite(now.at) || !Number.isFinite(now.waited)) return;
    const then = this.#samples.get(rank);
    // A total or a clock that falls is that of another process.
    if (!then || now.waited < then.waited || now.at < then.at) {
      this.shares.delete(rank);
      this.#samples.set(rank, now);
    } else if (now.at - then.at >= LEAST_SECONDS) {
      this.shares.set(rank, Math.min(1, (now.waited - then.waited) / (now.at - then.at)));
      this.#samples.set(rank, now);
    }
  }
}

// The slowest of the ranks that the coordinator names, which it does in the order in which it finds
// them; undefined where there is none.
export function worstStraggler(job) {
  const named = job.stragglers ?? [];
  return named.find(
      ({computesSeconds}) => named.every((other) => other.computesSeconds <= computesSeconds));
}

// {rank, node, sentence, isOfAll} of the rank that stands out, or null. isOfAll: of all ranks of
// the job, not of `ranks` alone. In trainings that step together all ranks have the same step: the
// slow one is that which the coordinator names, else one that lags, else one that hardly waits while
// the others do. foremost: a step that some other rank has come to.
export function slowest(job, ranks, stepsPerSecond, shares, foremost = -1) {
  const named = worstStraggler(job);
  if (named) {
    const ratio = named.medianSeconds > 0 ?
        `, ${(named.computesSeconds / named.medianSeconds).toFixed(1)} times the median` :
        "";
    return {
      rank: named.rank,
      node: named.nodeName,
      isOfAll: true,
      sentence: `computes ${seconds(named.computesSeconds)} of each step${ratio} (${
          seconds(named.medianSeconds)}): the others wait for it`
    };
  }
  const running = ranks.filter(
      (rank) => stateName(rank.state) === "RUNNING" && rank.progress?.step !== undefined);
  if (running.length < 2) return null;
  const highest = Math.max(foremost, highestStep(running));
  const last = running.reduce((a, b) => (b.progress.step < a.progress.step ? b : a));
  const lag = highest - last.progress.step;
  if (lagLevel(lag, stepsPerSecond) > 0) {
    return {rank: last.assignment.rank, node: last.nodeName, sentence: `is ${lag} steps behind`};
  }
  if (shares.size < 2) return null;
  const sorted = [...shares].sort((a, b) => a[1] - b[1]);
  const median = medianOf([...shares.values()]);
  if (median - sorted[0][1] < LEVEL_SHARES[0]) return null;
  const rank = running.find((one) => one.assignment.rank === sorted[0][0]);
  return rank && {
    rank: sorted[0][0],
    node: rank.nodeName,
    sentence: `waits ${percent(sorted[0][1])} of its time, the median rank ${
        percent(median)}: the others wait for it`
  };
}

function seconds(value) {
  return `${Number(value.toPrecision(3))} s`;
}

function percent(share) {
  return `${Math.round(share * 100)} %`;
}
