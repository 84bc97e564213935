// Pictures that the ranks of a job report, each with when it changed; nothing where there are none.

import {formatBytes, formatClock} from "../model/format.js";
import {get, url} from "../net/api.js";

import {el, keyed, setAttribute, setText, show} from "./dom.js";

export class Pictures {
  constructor(job) {
    this.base = `/jobs/${encodeURIComponent(job)}/pictures`;
    this.list = el("div", {class: "pictures"});
    this.element =
        el("section", {"aria-labelledby": "pictures-title", hidden: true},
           el("h2", {id: "pictures-title"}, "Pictures"), this.list);
  }

  async ask(signal) {
    try {
      const {pictures} = await get(this.base, {}, signal);
      this.#update(pictures);
    } catch (error) {
      // A coordinator without this route knows no pictures: it is not asked again, since that
      // throws.
      this.#update([]);
      throw error;
    }
  }

  #update(pictures) {
    show(this.element, pictures.length > 0);
    keyed(
        this.list, pictures, (one) => `${one.rank}/${one.name}`,
        (one) =>
            el("figure", {class: "picture"},
               el("a", {target: "_blank", rel: "noreferrer"},
                  el("img", {alt: `${one.name} of rank ${one.rank}`, loading: "lazy"})),
               el("figcaption")),
        (node, one) => {
          const where =
              url(`${this.base}/${one.rank}/${encodeURIComponent(one.name)}`, {at: one.modifiedAt});
          setAttribute(node.firstChild, "href", where);
          setAttribute(node.firstChild.firstChild, "src", where);
          setText(
              node.lastChild,
              `${one.name}, rank ${one.rank}, ${formatClock(Date.parse(one.modifiedAt))}, ${
                  formatBytes(one.bytes)}`);
        });
  }
}
