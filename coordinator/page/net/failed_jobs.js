// Jobs that failed. In a list of all jobs they come last, by their submission: where that list has
// more than one page, one that failed just now may be on any of them.

import {get} from "./api.js";

const PAGE = 200;
// A coordinator keeps 1000 jobs that have ended, if nobody says otherwise.
const MOST_PAGES = 10;
const PERIOD_MS = 10000;

export class FailedJobs {
  jobs = [];
  hasAll = true;
  #next = 0;

  // Asks anew if it is time; more seldom where there are more pages. Whether there are new answers.
  async ask(signal, now = performance.now()) {
    if (now < this.#next) return false;
    this.#next = now + PERIOD_MS;
    const jobs = [];
    let pages = 0;
    let pageToken = "";
    do {
      const answer =
          await get("/jobs", {state: "JOB_STATE_FAILED", pageSize: PAGE, pageToken}, signal);
      jobs.push(...answer.jobs);
      pageToken = answer.nextPageToken;
      pages += 1;
    } while (pageToken && pages < MOST_PAGES);
    this.jobs = jobs;
    this.hasAll = !pageToken;
    this.#next = now + pages * PERIOD_MS;
    return true;
  }
}
