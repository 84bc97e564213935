// Whether the coordinator answers: since when it does not, and who leads instead. All requests
// report here.

const listeners = new Set();
let clockOffset = 0;

export const link = {
  awaySince: null,
  message: "",
  leader: ""
};

export function onLink(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function answered() {
  if (link.awaySince === null) return;
  Object.assign(link, {awaySince: null, message: "", leader: ""});
  for (const listener of listeners) listener(link);
}

export function away(message, leader = "") {
  const isNews = link.awaySince === null || link.message !== message || link.leader !== leader;
  Object.assign(link, {awaySince: link.awaySince ?? Date.now(), message, leader});
  if (isNews)
    for (const listener of listeners) listener(link);
}

// Ages are differences on the coordinator's clock: that of this machine may be wrong.
export function setServerClock(text) {
  const at = Date.parse(text);
  if (Number.isFinite(at)) clockOffset = at - Date.now();
}

export function serverNow() {
  return Date.now() + clockOffset;
}
