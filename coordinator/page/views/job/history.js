// The generations of a job with how each ended, and its events with their causes.

import {generations} from "../../model/causes.js";
import {formatClock, formatDuration} from "../../model/format.js";
import {el, keyed, setText, show} from "../../ui/dom.js";
import {eventTable} from "../../ui/event_table.js";

export class JobHistory {
  constructor() {
    this.body = el("tbody");
    this.generations =
        el("table", {class: "plain"}, el("caption", {}, "Generations"),
           el("thead", {},
              el("tr", {},
                 ...["Generation", "Began", "Ran", "Ended"].map(
                     (title) => el("th", {scope: "col"}, title)))),
           this.body);
    this.events = eventTable({ofJob: true});
    this.element =
        el("section", {"aria-labelledby": "history"}, el("h2", {id: "history"}, "What happened"),
           this.generations, this.events.element);
  }

  // `generation`: the job's when its events were asked for.
  update({events, generation}, now) {
    const list = generations(events, generation).reverse();
    show(this.generations, list.length > 0);
    keyed(
        this.body, list, (one) => one.number,
        (one) => el(
            "tr", {}, el("th", {scope: "row"}, String(one.number)), el("td"), el("td"), el("td")),
        (row, one) => {
          const [, began, ran, ended] = row.children;
          setText(began, formatClock(one.admitted));
          setText(
              ran,
              Number.isNaN(one.started) ?
                  "–" :
                  formatDuration(
                      ((Number.isNaN(one.ended) ? now : one.ended) - one.started) / 1000));
          setText(ended, Number.isNaN(one.ended) ? "" : one.end);
        });
    this.events.update(events, now);
  }
}
