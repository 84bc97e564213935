// A stream of server-sent events that comes back by itself: after a broken connection, a failover,
// a sleep of this machine. fetch in place of EventSource, which hides why it was refused.

import {EventParser} from "../model/sse.js";

import {ApiError, errorOf, isAway, url} from "./api.js";
import {answered, away} from "./link.js";
import {takePlace} from "./turns.js";

// The coordinator sends a heartbeat every 10 s.
const SILENCE_MS = 25000;
const TRY_AGAIN = 429;
const LEAST_RETRY_MS = 300;
const MOST_RETRY_MS = 4000;
// A page that nobody looks at gives its streams back.
const HIDDEN_MS = 10000;

// handlers: on(event, data) for each event; opened() at each new connection, before its events;
// refused(error). An `end` event ends it. Returns a function that closes it.
export function openStream(path, query, handlers) {
  const closing = new AbortController();
  run(path, query, handlers, closing.signal);
  return () => closing.abort();
}

async function run(path, query, handlers, closed) {
  let retry = LEAST_RETRY_MS;
  while (!closed.aborted) {
    await untilSeen(closed);
    if (closed.aborted) return;
    const connection = new AbortController();
    const stop = () => connection.abort();
    closed.addEventListener("abort", stop);
    const stopWatching = closeWhenHidden(stop);
    let giveBack = () => {};
    let isTurnOver = false;
    try {
      giveBack = await takePlace(connection.signal, () => {
        isTurnOver = true;
        stop();
      });
      const ended = await readOnce(url(path, query), handlers, connection, () => {
        retry = LEAST_RETRY_MS;
      });
      if (ended) return;
    } catch (error) {
      if (closed.aborted) return;
      if (isTurnOver) continue;
      if (error instanceof ApiError && !isAway(error) && error.status !== TRY_AGAIN)
        return void handlers.refused?.(error);
      if (!document.hidden && error.status !== TRY_AGAIN)
        away(
            error instanceof ApiError ? error.message : "The coordinator does not answer.",
            error.leader ?? "");
    } finally {
      closed.removeEventListener("abort", stop);
      stopWatching();
      giveBack();
    }
    await new Promise((resolve) => {
      setTimeout(resolve, retry);
    });
    retry = Math.min(MOST_RETRY_MS, retry * 2);
  }
}

// Whether it came to its end.
async function readOnce(where, handlers, connection, works) {
  let watchdog = setTimeout(() => connection.abort(), SILENCE_MS);
  try {
    const response = await fetch(
        where,
        {signal: connection.signal, cache: "no-store", headers: {Accept: "text/event-stream"}});
    if (!response.ok) throw await errorOf(response);
    answered();
    handlers.opened?.();
    const parser = new EventParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return false;
      clearTimeout(watchdog);
      watchdog = setTimeout(() => connection.abort(), SILENCE_MS);
      works();
      for (const {event, data} of parser.feed(value)) {
        const content = data ? JSON.parse(data) : null;
        if (event === "error") throw new ApiError(streamStatus(content), content ?? {});
        handlers.on(event, content);
        if (event === "end") return true;
      }
    }
  } finally {
    clearTimeout(watchdog);
    connection.abort();
  }
}

// What ends a stream after its beginning has no HTTP status: whether it is worth another connection
// follows from its code.
function streamStatus(error) {
  return ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "ABORTED"].includes(
             error?.code) ?
      TRY_AGAIN :
      400;
}

function untilSeen(closed) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    const seen = () => {
      if (document.hidden && !closed.aborted) return;
      document.removeEventListener("visibilitychange", seen);
      resolve();
    };
    document.addEventListener("visibilitychange", seen);
    closed.addEventListener("abort", seen);
  });
}

function closeWhenHidden(stop) {
  let timer = 0;
  const changed = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(stop, HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", changed);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", changed);
  };
}
