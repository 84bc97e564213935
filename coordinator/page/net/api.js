// Calls of the coordinator's JSON API.

import {answered, away} from "./link.js";

const BASE = "api/v1";
const DEADLINE_MS = 10000;
// Stacks of many ranks take as long as a debugger needs.
const LONG_DEADLINE_MS = 60000;
const UNREACHABLE = "The coordinator does not answer.";

export class ApiError extends Error {
  constructor(status, body) {
    super(body.message || `The coordinator answers with HTTP ${status}.`);
    this.status = status;
    this.code = body.code ?? "";
    this.leader = body.leader ?? "";
    this.retryAfterSeconds = body.retryAfterSeconds ?? 0;
  }
}

export function url(path, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) words.append(name, one);
    }
  }
  const text = words.toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

// The parsed answer. Throws ApiError; status 0: nobody answered.
export async function get(path, query, signal) {
  const response =
      await reach(url(path, query), {signal: withDeadline(signal, DEADLINE_MS)}, signal);
  if (response.ok) {
    answered();
    return response.json();
  }
  const error = await errorOf(response);
  if (isAway(error))
    away(error.message, error.leader);
  else
    answered();
  throw error;
}

// A refusal says something about the action, nothing about the coordinator.
export async function post(path, body = {}, signal = undefined) {
  const response = await reach(
      url(path), {
        method: "POST",
        body: JSON.stringify(body),
        headers: {"Content-Type": "application/json"},
        signal: withDeadline(signal, LONG_DEADLINE_MS)
      },
      signal);
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

export async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(response.status, body);
}

// A coordinator that says why it cannot answer now, or a proxy before one that is gone.
export function isAway(error) {
  return error.status === 0 || error.status >= 502;
}

async function reach(where, options, signal) {
  try {
    return await fetch(where, {cache: "no-store", ...options});
  } catch (error) {
    if (signal?.aborted) throw error;
    away(UNREACHABLE);
    throw new ApiError(0, {code: "UNAVAILABLE", message: UNREACHABLE});
  }
}

function withDeadline(signal, ms) {
  const deadline = AbortSignal.timeout(ms);
  return signal ? AbortSignal.any([signal, deadline]) : deadline;
}
