// What an overview has looked at, of all jobs. Pure.

import {hasEnded, stateName} from "./names.js";

const IN_QUEUE = new Set(["QUEUED", "WAITING"]);

// {looked, active, isCut, isCutRunning}: how many jobs that have not ended are in `jobs`, which is
// the first page of the list with running ones first; of how many, `active`; whether there are more
// of them, and whether more that are not in the queue.
export function coverage(jobs, hasNextPage, active) {
  const looked = jobs.filter((job) => !hasEnded(job)).length;
  const last = jobs.at(-1);
  const isCut = Boolean(hasNextPage && last && !hasEnded(last)) && active > looked;
  return {looked, active, isCut, isCutRunning: isCut && !IN_QUEUE.has(stateName(last.state))};
}

// failed: {count, hasAll}, the jobs that failed which were looked at.
export function verdict(problems, {looked, active, isCut}, failed) {
  const seen = [
    isCut ? `${looked} of ${active} active jobs` : "",
    failed.hasAll ? "" : `the newest ${failed.count} that failed`
  ].filter(Boolean);
  const of = seen.length ? `, as far as ${seen.join(" and ")} tell` : "";
  if (!problems) return `All is well${of}.`;
  return `${problems} ${problems === 1 ? "thing" : "things"} to look at${of}.`;
}

// What stands before a link to all jobs, below `shown` of `jobs`; "" where there are no others.
export function restText(jobs, shown, isCut) {
  const rest = Math.max(0, jobs - shown);
  if (!rest && !isCut) return "";
  return rest ? `${rest}${isCut ? "+" : ""} more: ` : "More: ";
}
