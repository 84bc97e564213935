// Output of ranks: followed, searched, in bounded memory.

import {LogBuffer} from "../model/log_buffer.js";
import {parseRanks} from "../model/ranks.js";
import {openStream} from "../net/stream.js";

import {announce, el, measured, setAttribute, setText, show} from "./dom.js";

// More lines than these are searched, but not shown.
const MOST_SHOWN = 1500;
const TAIL = 500;
const SEARCH_PAUSE_MS = 150;

export class LogView {
  #buffer = new LogBuffer();
  #close = null;
  #shown = 0;
  #pending = false;
  #search = "";
  #job;

  constructor(job) {
    this.#job = job;
    this.#build();
  }

  // Whether a person has said which ranks, stream or generation.
  isChosen = false;

  // Ranks as "0,4-7"; "": all.
  open(ranks) {
    this.ranks.value = ranks;
    this.#restart();
  }

  choose(ranks) {
    this.isChosen = true;
    this.open(ranks);
  }

  focusSearch() {
    this.search.focus();
  }

  stop() {
    this.#close?.();
    this.#close = null;
  }

  // Generations that can be read: from 1 to this one.
  setGeneration(current) {
    const known = this.generation.options.length - 1;
    // What follows the current generation ends with it.
    if (known > 0 && current > known && this.#close && !this.generation.value) this.#restart();
    for (let number = known + 1; number <= current; number += 1) {
      this.generation.add(new Option(`generation ${number}`, number), 1);
    }
    show(this.generation.parentNode, current > 1);
  }

  #build() {
    const field = (label, input) => el("label", {class: "inline"}, `${label} `, input);
    this.ranks = el("input", {
      type: "text",
      size: "8",
      placeholder: "all",
      id: "log-ranks",
      "aria-describedby": "log-problem"
    });
    this.stream =
        el("select", {}, new Option("both", ""), new Option("stdout", "stdout"),
           new Option("stderr", "stderr"));
    this.generation = el("select", {}, new Option("current", ""));
    this.search = el("input", {type: "search", placeholder: "only lines with …", id: "log-search"});
    this.follow = el("input", {type: "checkbox", checked: true});
    this.lines = el("div", {class: "log-lines"});
    this.box =
        el("div", {
          class: "log",
          role: "log",
          "aria-live": "off",
          "aria-label": "Output of the ranks",
          tabindex: "0"
        },
           this.lines);
    this.status = el("p", {class: "muted log-status"});
    this.problem = el("p", {class: "problem", id: "log-problem", role: "alert", hidden: true});
    this.element =
        el("div", {class: "log-view"},
           el("div", {class: "controls"}, field("Ranks", this.ranks), field("Stream", this.stream),
              field("From", this.generation), field("Search", this.search),
              el("label", {class: "inline"}, this.follow, " follow")),
           this.problem, this.box, this.status);
    for (const input of [this.ranks, this.stream, this.generation])
      input.addEventListener("change", () => {
        this.isChosen = true;
        this.#restart();
      });
    let timer = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#searchFor(this.search.value), SEARCH_PAUSE_MS);
    });
    this.follow.addEventListener("change", () => {
      if (this.follow.checked) this.#toEnd();
    });
    // Who scrolls up wants to read.
    this.box.addEventListener("scroll", () => {
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
      if (atEnd !== this.follow.checked && !this.#pending) this.follow.checked = atEnd;
    });
  }

  #restart() {
    const ranks = parseRanks(this.ranks.value);
    show(this.problem, ranks === null);
    setAttribute(this.ranks, "aria-invalid", ranks === null ? "true" : null);
    if (ranks === null)
      return setText(
          this.problem,
          `'${this.ranks.value}' names no ranks: write for example 0,4-7, or nothing for all`);
    this.stop();
    this.#buffer = new LogBuffer();
    this.#redraw();
    const query = {
      ranks: this.ranks.value.replaceAll(" ", ""),
      stream: this.stream.value,
      tail: TAIL,
      generation: this.generation.value
    };
    this.#close = openStream(`/jobs/${encodeURIComponent(this.#job)}/logs/follow`, query, {
      opened: () => this.#buffer.resume(),
      on: (event, piece) => {
        if (event === "log") this.#buffer.add(piece);
        if (event === "end") this.#buffer.end();
        this.#later();
      },
      refused: (error) => {
        setText(this.problem, error.message);
        show(this.problem, true);
      },
    });
  }

  #searchFor(text) {
    this.#search = text;
    this.#redraw();
    if (text) announce(`${this.#buffer.matching(text).length} lines with ${text}`);
  }

  #later() {
    if (this.#pending) return;
    this.#pending = true;
    setTimeout(() => {
      measured("log", () => this.#append());
      this.#pending = false;
    }, 100);
  }

  #redraw() {
    this.lines.replaceChildren();
    this.#shown = 0;
    this.#append();
  }

  #append() {
    const fresh = this.#buffer.matching(this.#search)
                      .filter((line) => line.number > this.#shown)
                      .slice(-MOST_SHOWN);
    this.#shown = this.#buffer.lines.at(-1)?.number ?? 0;
    this.lines.append(...fresh.map((line) => lineOf(line, this.#search)));
    while (this.lines.childElementCount > MOST_SHOWN) this.lines.firstChild.remove();
    if (this.follow.checked) this.#toEnd();
    const all = this.#buffer.lines.length;
    const matches = this.#search ? `${this.#buffer.matching(this.#search).length} of ` : "";
    setText(
        this.status,
        all ?
            `${matches}${all} lines${
                this.#buffer.dropped ? `; ${this.#buffer.dropped} earlier ones were let go` : ""}` :
                                       "No output yet.");
  }

  #toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }
}

function lineOf(line, search) {
  const node =
      el("div", {class: "log-line", "data-stream": line.stream},
         el("span", {class: "log-rank"}, `${line.rank}${line.stream === "stderr" ? " err" : ""}`),
         el("span", {class: "log-text"}));
  const text = node.lastChild;
  const at = search ? line.text.toLowerCase().indexOf(search.toLowerCase()) : -1;
  if (at < 0)
    text.textContent = line.text;
  else
    text.append(
        line.text.slice(0, at), el("mark", {}, line.text.slice(at, at + search.length)),
        line.text.slice(at + search.length));
  return node;
}
