// The rates of many jobs, from one look at them to the next. Pure.

import {hasEnded} from "./names.js";
import {Rate, speedOf} from "./rate.js";

// More seconds than two looks lie apart while somebody looks.
const LONGEST_PAUSE_MS = 20000;

export class Rates {
  #jobs = new Map();
  #nowMs = 0;

  add(jobs, nowMs) {
    const isWatched = nowMs - this.#nowMs <= LONGEST_PAUSE_MS;
    this.#nowMs = nowMs;
    const seen = new Set();
    for (const job of jobs) {
      if (hasEnded(job) || job.progress?.step === undefined) continue;
      seen.add(job.jobId);
      if (!this.#jobs.has(job.jobId)) this.#jobs.set(job.jobId, new Rate());
      this.#jobs.get(job.jobId).lookAt(job, nowMs / 1000, isWatched);
    }
    for (const id of this.#jobs.keys())
      if (!seen.has(id)) this.#jobs.delete(id);
  }

  // As speedOf, at the last look.
  of(job) {
    return speedOf(job, this.#jobs.get(job.jobId), this.#nowMs);
  }
}
