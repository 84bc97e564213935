// What can be done to a job, for roles that may; each asks first, and shows the coordinator's
// sentence where it is refused.

import {count} from "../../model/format.js";
import {hasEnded, stateName, waits} from "../../model/names.js";
import {post} from "../../net/api.js";
import {confirmAction} from "../../ui/dialog.js";
import {announce, el, setText, show} from "../../ui/dom.js";

export class JobActions {
  #job = null;

  // stack(): shows where the ranks stand. changed(): something was done.
  constructor(id, me, {stack, changed}) {
    this.id = id;
    this.me = me;
    this.changed = changed;
    const button = (text, act, key) =>
        el("button", {type: "button", onclick: act, "aria-keyshortcuts": key ?? null}, text);
    this.stack = button("Stack", stack, "s");
    this.hold = button("Hold", () => this.#update("hold"));
    this.release = button("Release", () => this.#update("release"));
    this.stop = button("Cancel …", () => this.cancel(), "c");
    this.stop.classList.add("danger-quiet");
    this.note = el("span", {class: "muted"});
    this.element =
        el("div", {class: "actions", role: "group", "aria-label": `Actions on ${id}`}, this.stack,
           this.hold, this.release, this.stop, this.note);
  }

  update(job) {
    this.#job = job;
    const ended = hasEnded(job);
    const may = (method) => this.me.may.has(method);
    const held = job.spec?.hold && waits(job);
    show(this.stack, stateName(job.state) === "RUNNING" && may("GetStacks"));
    show(this.hold, waits(job) && !held && may("UpdateJob"));
    show(this.release, Boolean(held) && may("UpdateJob"));
    show(this.stop, !ended && may("CancelJob"));
    setText(
        this.note,
        !ended && this.me.roles.length && !may("CancelJob") ?
            `Your role (${
                this.me.roles.join(", ")}) may look; cancelling needs submit or operate.` :
            "");
  }

  mayStack() {
    return this.me.may.has("GetStacks");
  }

  async cancel() {
    const job = this.#job;
    if (!job || hasEnded(job) || !this.me.may.has("CancelJob")) return;
    const what = job.worldSize ? `${count(job.worldSize, "rank")} of ${
                                     job.submitter || "nobody"} are stopped, and the job ends.` :
                                 `The job of ${job.submitter || "nobody"} leaves the queue.`;
    const done = await confirmAction({
      title: `Cancel ${this.id}?`,
      text: what,
      danger: true,
      confirm: `Cancel ${this.id}`,
      keep: "Let it go on",
      fields: [
        {name: "reason", label: "Reason, said in the job's state", type: "text"},
        {name: "now", label: "Kill at once, without the job's grace", type: "checkbox"}
      ],
      act: ({reason, now}) => post(`/jobs/${encodeURIComponent(this.id)}/cancel`, {reason, now})
    });
    if (done) this.#done(`${this.id} is being cancelled.`);
  }

  async #update(what) {
    const text = what === "hold" ? "It stays in the queue until it is released." :
                                   "It may start as soon as there is room.";
    const done = await confirmAction({
      title: `${what === "hold" ? "Hold" : "Release"} ${this.id}?`,
      text,
      confirm: `${what === "hold" ? "Hold" : "Release"} ${this.id}`,
      keep: "Leave it",
      act: () => post(`/jobs/${encodeURIComponent(this.id)}/${what}`)
    });
    if (done) this.#done(`${this.id} is ${what === "hold" ? "held" : "released"}.`);
  }

  #done(text) {
    announce(text);
    this.changed();
  }
}
