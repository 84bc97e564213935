// Folds what WatchJob sends into the job as it is: the rules of core/job_delta.h. Pure.

// The most points that a curve keeps here; the coordinator keeps 256, and sends new ones as they
// come.
export const MOST_POINTS = 4096;

// `known`: {job, curve} or null. Returns the next {job, curve}.
export function fold(known, answer) {
  if (answer.job) return {job: answer.job, curve: join(known?.curve ?? [], answer.curve ?? [])};
  if (!known) return known;
  const job = answer.delta ? foldDelta(known.job, answer.delta) : known.job;
  return {job, curve: addPoints(known.curve, answer.curve ?? [])};
}

function foldDelta(job, delta) {
  const next = {
    ...delta.head,
    spec: job.spec,
    ranks: job.ranks,
    groups: delta.hasGroups ? delta.groups : job.groups
  };
  if (delta.ranks?.length) {
    const changed = new Map(delta.ranks.map((rank) => [rank.assignment.rank, rank]));
    next.ranks = job.ranks.map((rank) => {
      const now = changed.get(rank.assignment.rank);
      return now ? {...now, progress: rank.progress} : rank;
    });
  }
  return next;
}

// After another connection the coordinator tells its points again: fewer than are known here, or
// only later ones once it was started anew. All are kept, each once.
function join(known, curve) {
  const keyOf = (point) => `${point.at} ${point.step}`;
  const keys = new Set(known.map(keyOf));
  const news = curve.filter((point) => !keys.has(keyOf(point)));
  if (!known.length || !news.length || timeOf(news[0]) >= timeOf(known.at(-1)))
    return addPoints(known, news);
  return addPoints([], [...known, ...news].sort((a, b) => timeOf(a) - timeOf(b)));
}

function timeOf(point) {
  return Date.parse(point.at);
}

// Where there are too many points, every other one is left out, except among the newest.
function addPoints(curve, points) {
  if (!points.length) return curve;
  let all = [...curve, ...points];
  while (all.length > MOST_POINTS)
    all = all.filter((_, i) => i % 2 === 0 || i >= all.length - 256);
  return all;
}
