// Asks again and again, while somebody looks.

import {isAway} from "./api.js";

const LEAST_RETRY_MS = 500;
const MOST_RETRY_MS = 4000;

// Milliseconds between two looks at so many nodes and jobs: who shows more asks less often.
export function pace(items) {
  return Math.min(10000, 2000 + 8 * items);
}

// Runs `ask(signal)` now and `ms` after each answer; sooner after an error, at first.
// `refused(error)`: an answer that asking again does not change, after which it stops.
// Returns {stop, now}: `now` asks at once, or once more after the request that runs.
export function poll(ask, ms, refused = () => {}) {
  const controller = new AbortController();
  let wake = () => {};
  let retry = LEAST_RETRY_MS;
  let isAsked = false;

  async function run() {
    while (!controller.signal.aborted) {
      isAsked = false;
      let pause = typeof ms === "function" ? ms() : ms;
      if (document.hidden) {
        pause = Infinity;
      } else {
        try {
          await ask(controller.signal);
          retry = LEAST_RETRY_MS;
        } catch (error) {
          if (controller.signal.aborted) return;
          if (!(error.status >= 0))
            console.error(error);
          else if (!isAway(error) && error.status !== 429)
            return void refused(error);
          pause = Math.max(retry, (error.retryAfterSeconds ?? 0) * 1000);
          retry = Math.min(MOST_RETRY_MS, retry * 2);
        }
      }
      if (isAsked) continue;
      await new Promise((resolve) => {
        wake = resolve;
        if (pause < Infinity) setTimeout(resolve, pause);
      });
    }
  }

  const seen = () => {
    if (!document.hidden) wake();
  };
  document.addEventListener("visibilitychange", seen);
  run();
  return {
    now() {
      isAsked = true;
      wake();
    },
    stop() {
      controller.abort();
      document.removeEventListener("visibilitychange", seen);
      wake();
    },
  };
}
