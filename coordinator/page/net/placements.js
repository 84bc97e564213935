// Which ranks of which jobs are on which node. A job's placement stands for a generation: each is
// asked for once.

import {formatRanks} from "../model/ranks.js";

import {get} from "./api.js";

const MOST_AT_ONCE = 4;

export class Placements {
  // By job: {generation, nodes: Map of node name to ranks}.
  #jobs = new Map();

  // Whether anything was news.
  async learn(jobs, signal) {
    const placed = jobs.filter((job) => job.worldSize > 0 && job.generation > 0);
    const ids = new Set(placed.map((job) => job.jobId));
    let isNews = false;
    for (const id of this.#jobs.keys()) {
      if (ids.has(id)) continue;
      this.#jobs.delete(id);
      isNews = true;
    }
    const unknown =
        placed.filter((job) => this.#jobs.get(job.jobId)?.generation !== job.generation);
    for (let i = 0; i < unknown.length; i += MOST_AT_ONCE) {
      await Promise.all(unknown.slice(i, i + MOST_AT_ONCE).map((job) => this.#ask(job, signal)));
    }
    return isNews || unknown.length > 0;
  }

  onNode(name) {
    const found = [];
    for (const [job, {nodes}] of this.#jobs) {
      const ranks = nodes.get(name);
      if (ranks) found.push({job, ranks, text: formatRanks(ranks)});
    }
    return found;
  }

  async #ask({jobId, generation}, signal) {
    const nodes = new Map();
    let first = 0;
    do {
      const answer = await get(`/jobs/${encodeURIComponent(jobId)}`, {firstRank: first}, signal);
      for (const {assignment, nodeName} of answer.job.ranks)
        nodes.set(nodeName, [...(nodes.get(nodeName) ?? []), assignment.rank]);
      first = answer.nextRank;
    } while (first > 0);
    this.#jobs.set(jobId, {generation, nodes});
  }
}
