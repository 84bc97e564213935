// Pictures that the ranks of a job show, each with its age; nothing where there are none.

import {formatAgo, formatBytes} from "../model/format.js";
import {get, url} from "../net/api.js";
import {serverNow} from "../net/link.js";

import {el, keyed, setAttribute, setText, show} from "./dom.js";

export class Pictures {
  #known = [];

  constructor(job) {
    this.base = `/jobs/${encodeURIComponent(job)}/pictures`;
    this.list = el("div", {class: "pictures"});
    this.element =
        el("section", {"aria-labelledby": "pictures-title", hidden: true},
           el("h2", {id: "pictures-title"}, "Pictures"), this.list);
  }

  async ask(signal) {
    const {pictures, problem} = await get(this.base, {}, signal);
    this.#known = problem ? merged(this.#known, pictures) : pictures;
    this.update(serverNow());
  }

  update(now) {
    show(this.element, this.#known.length > 0);
    keyed(
        this.list, this.#known, keyOf,
        (one) => el(
            "figure", {class: "picture"},
            el("a", {target: "_blank", rel: "noreferrer"},
               el("img", {alt: `${one.name} of rank ${one.rank}`, loading: "lazy"})),
            el("figcaption")),
        (node, one) => {
          const where =
              url(`${this.base}/${one.rank}/${encodeURIComponent(one.name)}`, {at: one.modifiedAt});
          setAttribute(node.firstChild, "href", where);
          setAttribute(node.firstChild.firstChild, "src", where);
          const age = formatAgo((now - Date.parse(one.modifiedAt)) / 1000);
          setText(
              node.lastChild, `${one.name}, rank ${one.rank}, ${age}, ${formatBytes(one.bytes)}`);
        });
  }
}

const keyOf = (one) => `${one.rank}/${one.name}`;

// Some hosts have not answered: their pictures stay as they were.
function merged(before, now) {
  const found = new Map([...before, ...now].map((one) => [keyOf(one), one]));
  const order = (a, b) => a.rank - b.rank || (a.name < b.name ? -1 : a.name > b.name ? 1 : 0);
  return [...found.values()].sort(order);
}
