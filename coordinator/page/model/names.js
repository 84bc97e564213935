// Enums of the API, and where they belong in the order in which people look. Pure.

const ENDED = new Set(["SUCCEEDED", "FAILED", "CANCELLED"]);
const WAITS = new Set(["QUEUED", "ADMITTED", "WAITING", "SUSPENDED"]);

export const JOB_STATES = [
  "RUNNING", "RENDEZVOUS", "QUIESCING", "QUEUED", "ADMITTED", "WAITING", "SUSPENDED", "FAILED",
  "CANCELLED", "SUCCEEDED"
];

// "JOB_STATE_RUNNING" -> "RUNNING".
export function stateName(value) {
  return (value ?? "").replace(/^(JOB|NODE|RANK)_STATE_/, "");
}

export function hasEnded(job) {
  return ENDED.has(stateName(job.state));
}

export function waits(job) {
  return WAITS.has(stateName(job.state));
}

// "good", "busy", "warn", "bad" or "rest": which colour and which shape a state has.
export function tone(state) {
  switch (stateName(state)) {
    case "RUNNING":
    case "HEALTHY":
    case "SUCCEEDED":
      return "good";
    case "RENDEZVOUS":
    case "ADMITTED":
    case "QUIESCING":
    case "ASSIGNED":
      return "busy";
    case "WAITING":
    case "SUSPECT":
    case "DRAINING":
    case "UNHEALTHY":
    case "SUSPENDED":
      return "warn";
    case "FAILED":
    case "LOST":
      return "bad";
    default:
      return "rest";
  }
}

export const SHAPES = {
  good: "●",
  busy: "◐",
  warn: "▲",
  bad: "✕",
  rest: "○"
};
