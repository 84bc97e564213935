// What was asked for, the command that asks for it again, and another job to compare with.

import {submitCommand} from "../../model/command.js";
import {formatClock, parseTime} from "../../model/format.js";
import {get} from "../../net/api.js";
import {announce, el, keyed, setText} from "../../ui/dom.js";

export class JobAbout {
  constructor(id) {
    this.id = id;
    this.command =
        el("pre",
           {class: "command", tabindex: "0", "aria-label": "Command that submits this job again"});
    this.facts = el("dl", {class: "facts-list"});
    this.copy = el("button", {type: "button", onclick: () => this.#copy()}, "Copy");
    this.other = el("select", {id: "compare-with"}, new Option("another job …", ""));
    this.other.addEventListener("focus", () => this.#fill());
    this.other.addEventListener("pointerdown", () => this.#fill());
    this.go =
        el("button", {
          type: "button",
          onclick: () => {
            if (this.other.value)
              location.hash = `#/compare/${encodeURIComponent(this.id)}/${
                  encodeURIComponent(this.other.value)}`;
          }
        },
           "Compare");
    this.element = el(
        "section", {"aria-labelledby": "about"}, el("h2", {id: "about"}, "The job"), this.facts,
        el("h3", {}, "To repeat it"), el("div", {class: "copy-row"}, this.command, this.copy),
        el("div", {class: "actions"},
           el("label", {"for": "compare-with"}, "Compare its curves with"), this.other, this.go));
  }

  update(job, now) {
    setText(this.command, submitCommand(job.spec));
    keyed(
        this.facts, facts(job, now), ([name]) => name,
        ([name]) => el("div", {}, el("dt", {}, name), el("dd")),
        (node, [, value]) => setText(node.lastChild, value));
  }

  // Jobs that a person may mean, when he is about to choose.
  async #fill() {
    if (this.filled) return;
    this.filled = true;
    try {
      const {jobs} = await get("/jobs", {pageSize: 200});
      for (const job of jobs)
        if (job.jobId !== this.id) this.other.add(new Option(job.jobId, job.jobId));
    } catch {
      this.filled = false;
    }
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.command.textContent);
    } catch {
      // Without a secure context there is no clipboard: the text is selected, to be copied by keys.
      getSelection().selectAllChildren(this.command);
      document.execCommand("copy");
    }
    announce("The command is copied.");
    setText(this.copy, "Copied");
    setTimeout(() => setText(this.copy, "Copy"), 2000);
  }
}

function facts(job, now) {
  const {spec} = job;
  const when = (text) => formatClock(parseTime(text), now);
  const list = [
    ["user", job.submitter],
    [
      "command",
      [spec.shippedJob && `job ${spec.shippedJob}`, ...(spec.command ?? [])].filter(Boolean).join(
          " ")
    ],
    ["directory", spec.workingDir], ["submitted", when(job.submittedAt)],
    ["started", job.startedAt && when(job.startedAt)],
    ["finished", job.finishedAt && when(job.finishedAt)],
    ["priority", spec.priority ? String(spec.priority) : ""], ["account", spec.account],
    ["partition", spec.partition], ["constraints", (spec.constraints ?? []).join(", ")],
    ["array", job.arrayId && `${job.arrayId}, index ${job.arrayIndex}`],
    ["master", job.masterAddr && `${job.masterAddr}:${job.masterPort}`],
    [
      "checkpoints",
      (job.checkpoints ?? [])
          .map((one) => `step ${one.step} of ${one.name || "the job"}`)
          .join("; ")
    ]
  ];
  return list.filter(([, value]) => value);
}
