// What an operator should look at, the worst first. Pure.

import {formatDuration, parseTime} from "./format.js";
import {worstStraggler} from "./lag.js";
import {hasEnded, stateName, tone} from "./names.js";

const RECENT_MS = 3600 * 1000;
const CERTIFICATE_MS = 7 * 24 * 3600 * 1000;
const ORDER = ["bad", "warn", "busy"];

// [{key, tone, state, word, name, href, text}]
export function attention(cluster, nodes, jobs, now) {
  const found = [];
  if (cluster.readOnlyReason) {
    found.push({
      key: "read-only",
      tone: "bad",
      state: "FAILED",
      word: "READ ONLY",
      name: "Coordinator",
      href: "#/nodes",
      text: cluster.readOnlyReason
    });
  }
  for (const node of nodes) found.push(...ofNode(node, now));
  for (const job of jobs) found.push(...ofJob(job, now));
  return found.sort((a, b) => ORDER.indexOf(a.tone) - ORDER.indexOf(b.tone));
}

function ofNode(node, now) {
  const found = [];
  const entry = (kind, tone_, word, text) => found.push({
    key: `${node.nodeId}-${kind}`,
    tone: tone_,
    state: node.state,
    word,
    name: node.name,
    href: "#/nodes",
    text
  });
  const state = stateName(node.state);
  if (state !== "HEALTHY") {
    const lost =
        node.lostAt ? `lost ${formatDuration((now - parseTime(node.lostAt)) / 1000)} ago` : "";
    entry(
        "state", tone(node.state), state,
        [...(node.problems ?? []), node.drainReason, lost].filter(Boolean).join("; ") ||
            "does not answer");
  } else if (node.drained) {
    entry(
        "drained", "warn", node.quarantined ? "QUARANTINED" : "DRAINED",
        node.drainedBecause || "nothing new is placed here");
  }
  const end = parseTime(node.certificateEndsAt);
  if (end - now < CERTIFICATE_MS)
    entry("certificate", "warn", "CERTIFICATE", `ends in ${formatDuration((end - now) / 1000)}`);
  return found;
}

function ofJob(job, now) {
  const found = [];
  const entry = (kind, tone_, word, text) => found.push({
    key: `${job.jobId}-${kind}`,
    tone: tone_,
    state: job.state,
    word,
    name: job.jobId,
    href: `#/jobs/${encodeURIComponent(job.jobId)}`,
    text
  });
  if (hasEnded(job)) {
    if (stateName(job.state) === "FAILED" && now - parseTime(job.finishedAt) < RECENT_MS)
      entry("failed", "bad", "FAILED", job.reason);
    return found;
  }
  if (job.hang) entry("hang", "bad", "HANGS", job.hang);
  if (typeof job.progress?.loss === "string")
    entry("loss", "bad", "LOSS", `is ${job.progress.loss}`);
  if (stateName(job.state) === "WAITING") entry("waits", "warn", "WAITING", job.reason);
  const slow = worstStraggler(job);
  if (slow)
    entry(
        "slow", "warn", "SLOW",
        `rank ${slow.rank} on ${slow.nodeName} computes for longer than the others, which wait`);
  if (job.pausedSince) entry("paused", "warn", "PAUSED", "ranks are stopped by SIGSTOP");
  return found;
}
