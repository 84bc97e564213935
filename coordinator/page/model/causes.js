// What happened to a job, and why: causes with what followed from them, and its generations. Pure.
// The same rules as client/render/causes.cc and report.cc.

// Oldest first: {cause, before, consequences, actions} with events of the API.
export function incidents(events) {
  const bySequence = new Map(events.map((event) => [event.sequence, event]));
  const found = new Map();
  for (const event of events) {
    if (!event.jobId) continue;
    if (event.role === "EVENT_ROLE_CAUSE") {
      found.set(event.sequence, {
        cause: event,
        before: bySequence.get(event.cause) ?? null,
        consequences: [],
        actions: []
      });
      continue;
    }
    const incident = found.get(event.cause);
    if (incident)
      (event.role === "EVENT_ROLE_CONSEQUENCE" ? incident.consequences : incident.actions)
          .push(event);
  }
  return [...found.values()];
}

// What led to the failure that the job shows; without a failure the last thing that happened.
export function incidentOf(job, events) {
  const all = incidents(events);
  if (!job.failure) return all.at(-1);
  // A failure that follows from an open cause, such as a hang, is a consequence and no cause.
  const tells = ({message}) => Boolean(message) &&
      (job.failure.message.endsWith(message) || message.endsWith(job.failure.message));
  const told = job.failure.message &&
      all.findLast(
          ({cause, consequences, actions}) => [cause, ...consequences, ...actions].some(tells));
  return told || all.at(-1);
}

const FAILURES = new Set(["RankFailed", "NodeFailed", "PrepareFailed"]);
const ENDS = new Set([
  "JobRestarting", "JobRequeued", "GoesOnInProcess", "JobSucceeded", "JobFailed", "JobCancelled"
]);

// Oldest first: {number, admitted, started, ended, end} with times in milliseconds or NaN.
export function generations(events, current) {
  const list = [];
  for (const event of events) {
    const at = Date.parse(event.at);
    if (event.kind === "JobAdmitted") {
      const before = list.at(-1);
      // Another one follows: it has ended, whatever is known of its end.
      if (before && Number.isNaN(before.ended)) {
        before.ended = at;
        if (!before.end && Number.isNaN(before.started)) before.end = "given up before its start";
      }
      list.push({admitted: at, started: NaN, ended: NaN, end: ""});
    }
    const last = list.at(-1);
    if (!last) continue;
    if (event.kind === "GenerationStarted") last.started = at;
    if (FAILURES.has(event.kind) && !last.end) last.end = event.message;
    if (!ENDS.has(event.kind) || !Number.isNaN(last.ended)) continue;
    last.ended = at;
    if (!last.end) {
      last.end = event.kind === "JobSucceeded" ? "succeeded" :
          event.kind === "JobCancelled"        ? `cancelled: ${event.message}` :
                                                 event.message;
    }
  }
  return list.map((one, i) => ({number: current + i + 1 - list.length, ...one}));
}

// Groups of ranks that ended as a consequence: [{end, ranks}].
export function consequences(job) {
  const groups = new Map();
  for (const rank of job.ranks ?? []) {
    if (!rank.exit?.teardown) continue;
    groups.set(rank.end, [...(groups.get(rank.end) ?? []), rank.assignment.rank]);
  }
  return [...groups].map(([end, ranks]) => ({end, ranks}));
}
