// Events in the order in which they happened, the newest first.

import {formatAgo, formatClock, parseTime} from "../model/format.js";

import {el, headedTable, keyed, setAttribute, setText} from "./dom.js";

const WORDS = {
  EVENT_ROLE_CAUSE: "cause",
  EVENT_ROLE_CONSEQUENCE: "consequence",
  EVENT_ROLE_ACTION: "action"
};

// {element, update(events, now)}. ofJob: without the column of jobs.
export function eventTable({ofJob = false} = {}) {
  const body = el("tbody", {role: "rowgroup"});
  const titles = ["When", "Event", ...(ofJob ? [] : ["Job"]), "What"];
  const table = headedTable("events", "Events", titles, body);
  const element = el(
      "div", {class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Events"}, table);
  return {element, update: (events, now) => update(body, events, now, ofJob)};
}

function update(body, events, now, ofJob) {
  const bySequence = new Map(events.map((event) => [event.sequence, event]));
  keyed(
      body, [...events].reverse(), (event) => event.sequence,
      (event) => row(event, bySequence.get(event.cause), ofJob), (node, event) => {
        setText(node.firstChild.firstChild, formatAgo((now - parseTime(event.at)) / 1000));
      });
}

function row(event, cause, ofJob) {
  const role = WORDS[event.role] ?? "";
  const who = event.actor ? ` (by ${event.actor})` : "";
  // Where the cause is another job's or a node's, its own words stand here alone.
  const words =
      cause && cause.jobId !== event.jobId ? `${cause.kind}: ${cause.message}` : cause?.kind;
  const because = event.cause ? words ?? `event ${event.cause}` : "";
  const node = el(
      "tr", {role: "row", "data-role": role || null, id: ofJob ? `event-${event.sequence}` : null},
      el("td", {role: "cell", class: "when"},
         el("span", {title: formatClock(parseTime(event.at))})),
      el("td", {role: "cell"}, el("span", {class: "event-kind"}, event.kind),
         role ? el("span", {class: "role"}, role) : null),
      ofJob ? null :
              el("td", {role: "cell"},
                 event.jobId ?
                     el("a", {href: `#/jobs/${encodeURIComponent(event.jobId)}`}, event.jobId) :
                     ""),
      el("td", {role: "cell", class: "what"}, `${event.message}${who}`,
         because ? el("span", {class: "because"}, ` because of ${because}`) : null));
  setAttribute(node, "data-sequence", event.sequence);
  return node;
}
