// What failed first in the last generation that failed, its last lines, and what followed from it.
// Where nothing has failed: what happened last.

import {consequences, incidentOf} from "../../model/causes.js";
import {hasEnded} from "../../model/names.js";
import {formatRanks} from "../../model/ranks.js";
import {el, keyed, setAttribute, setText, show} from "../../ui/dom.js";

export class JobFailure {
  // log(rank), rank(rank): shows that rank's log, that rank in the grid.
  constructor(look) {
    this.look = look;
    this.heading = el("h2", {id: "failure", tabindex: "-1"}, "Last failure");
    this.sentence = el("p", {class: "cause"});
    this.lines =
        el("pre", {class: "last-lines", tabindex: "0", "aria-label": "Last lines of the rank"});
    this.chain = el("ul", {class: "chain"});
    this.toLog =
        el("button", {type: "button", class: "primary", onclick: () => look.log(this.rank)});
    this.toRank = el("button", {type: "button", onclick: () => look.rank(this.rank)});
    this.element =
        el("section", {class: "failure", "aria-labelledby": "failure", hidden: true}, this.heading,
           this.sentence, this.lines, el("div", {class: "actions"}, this.toLog, this.toRank),
           this.chain);
  }

  focus() {
    if (!this.element.hidden) this.heading.focus();
  }

  update(job, events) {
    const incident = incidentOf(job, events);
    const {failure} = job;
    show(this.element, Boolean(failure || incident));
    if (!failure && !incident) return;
    setText(this.heading, !failure ? "Last cause" : failure.planned ? "Last stop" : "Last failure");
    setAttribute(this.element, "data-tone", hasEnded(job) ? "bad" : "warn");
    this.rank = failure?.rank ?? -1;
    setText(this.sentence, failure?.message || incident.cause.message);
    const lines = [...(failure?.exit?.lastLines ?? [])];
    if (failure?.exit?.errorMessage &&
        !lines.some((line) => line.includes(failure.exit.errorMessage)))
      lines.push(failure.exit.errorMessage);
    setText(this.lines, lines.join("\n"));
    show(this.lines, lines.length > 0);
    for (const [button, text] of [
             [this.toLog, `Log of rank ${this.rank}`],
             [this.toRank, `Rank ${this.rank} in the grid`]]) {
      setText(button, text);
      show(button, this.rank >= 0);
    }
    const others = failure?.generation === job.generation ?
        consequences(job).map(
            ({end, ranks}) => ({
              role: "consequence",
              text: `${ranks.length === 1 ? "rank" : "ranks"} ${formatRanks(ranks)} ${end}`
            })) :
        [];
    const chain = [
      ...(incident?.before ? [{role: "before it", text: incident.before.message}] : []),
      ...(incident?.consequences ?? [])
          .map((event) => ({role: "consequence", text: event.message})),
      ...others,
      ...(incident?.actions ?? []).map((event) => ({
                                         role: "done",
                                         text: event.kind === "JobFailed" ? "the job failed" :
                                                                            event.message
                                       }))
    ];
    keyed(
        this.chain, chain, (one) => one.role + one.text,
        (one) => el("li", {}, el("span", {class: "role"}, one.role), ` ${one.text}`));
  }
}
