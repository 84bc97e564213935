// Where the ranks stand: their stacks, merged where equal, and the flight record of their
// collectives.

import {count} from "../../model/format.js";
import {stateName} from "../../model/names.js";
import {formatRanks} from "../../model/ranks.js";
import {leftOut, mergeStacks} from "../../model/stacks.js";
import {post} from "../../net/api.js";
import {announce, el, setText, show} from "../../ui/dom.js";

export class JobStacks {
  constructor(id) {
    this.path = `/jobs/${encodeURIComponent(id)}`;
    this.heading = el("h2", {id: "stacks", tabindex: "-1"}, "Where the ranks stand");
    this.status = el(
        "p", {class: "muted", role: "status"},
        "A stack shows functions, files and lines; a rank stands still for the moment in which it is read.");
    this.native = el("input", {type: "checkbox", id: "stack-native"});
    this.all = el("button", {type: "button", onclick: () => this.ask()}, "Stack of all ranks");
    this.flight = el("button", {type: "button", onclick: () => this.askFlight()}, "Flight record");
    this.leftOut = el("p", {class: "left-out", hidden: true});
    this.groups = el("div", {class: "stacks"});
    this.worldSize = 0;
    this.element =
        el("section", {"aria-labelledby": "stacks", hidden: true}, this.heading,
           el("div", {class: "actions"}, this.all, this.flight,
              el("span", {}, this.native, " ",
                 el("label", {"for": "stack-native"}, "machine code too"))),
           this.status, this.leftOut, this.groups);
  }

  update(job) {
    this.worldSize = job.worldSize ?? 0;
    const running = stateName(job.state) === "RUNNING";
    show(this.element, running || this.groups.childElementCount > 0);
    for (const button of [this.all, this.flight]) button.disabled = !running;
  }

  // Asks for these ranks; none: for all.
  ask(ranks = []) {
    return this.#run(
        ranks.length ? `stack of rank ${formatRanks(ranks)}` : "stacks of all ranks", async () => {
          const answer = await post(`${this.path}/stacks`, {ranks, native: this.native.checked});
          const merged = mergeStacks(answer.stacks);
          this.groups.replaceChildren(...merged.map(stackOf));
          this.#tellLeftOut("stacks", ranks, answer.stacks, answer.more);
          return `${count(answer.stacks.length, "rank")} in ${count(merged.length, "place")}`;
        });
  }

  askFlight() {
    return this.#run("flight record", async () => {
      const answer = await post(`${this.path}/flightRecords`);
      this.groups.replaceChildren(
          el("p", {class: "cause"}, answer.sentence || "Nothing stands out."),
          ...answer.records.map(recordOf));
      this.#tellLeftOut("records", [], answer.records, answer.more);
      return answer.sentence || count(answer.records.length, "record");
    });
  }

  #tellLeftOut(nouns, asked, found, more) {
    const said = leftOut(nouns, asked, this.worldSize, found, more);
    setText(this.leftOut, said);
    show(this.leftOut, said !== "");
  }

  async #run(what, work) {
    show(this.element, true);
    this.heading.scrollIntoView({block: "start"});
    this.heading.focus({preventScroll: true});
    setText(this.status, `Asking for the ${what} …`);
    try {
      const said = await work();
      setText(this.status, `${what}: ${said}.`);
      announce(said);
    } catch (error) {
      setText(this.status, error.message);
    }
  }
}

function stackOf({ranks, place, error, main, rest}) {
  const title = `${ranks.length === 1 ? "rank" : "ranks"} ${formatRanks(ranks)}`;
  const isOnlyTheError = error && main.includes(error);
  return el(
      "details", {class: "stack", open: true},
      el("summary", {}, el("strong", {}, title), ` ${place || error}`),
      main && !isOnlyTheError ?
          el("pre", {tabindex: "0", "aria-label": `Frames of ${title}`}, main) :
          null,
      rest ?
          el("details", {}, el("summary", {}, `Other threads of rank ${ranks[0]}`),
             el("pre", {tabindex: "0", "aria-label": `Other threads of rank ${ranks[0]}`}, rest)) :
          null);
}

function recordOf(record) {
  let said = record.error;
  try {
    if (record.json) said = JSON.stringify(JSON.parse(record.json), null, 1);
  } catch {
    said = record.json;
  }
  return el(
      "details", {class: "stack"},
      el("summary", {}, el("strong", {}, `rank ${record.rank}`),
         record.error ? ` ${record.error}` : ""),
      el("pre", {tabindex: "0", "aria-label": `Flight record of rank ${record.rank}`}, said));
}
