// Curves of what the job reports, live: the loss large, everything else beside it.

import {pointsOf, seriesNames} from "../../model/curves.js";
import {Curve} from "../../ui/curve.js";
import {el, keyed, show} from "../../ui/dom.js";

export class JobCurves {
  #curves = new Map();
  #drawn = null;

  constructor() {
    this.list = el("div", {class: "curves"});
    this.none = el("p", {class: "muted"}, "No number was reported yet.");
    this.element =
        el("section", {"aria-labelledby": "curves"}, el("h2", {id: "curves"}, "Curves"), this.none,
           this.list);
  }

  update(curve) {
    if (this.#drawn === curve) return;
    this.#drawn = curve;
    const names = seriesNames(curve);
    show(this.none, !names.length);
    keyed(this.list, names, (name) => name, (name) => {
      if (!this.#curves.has(name))
        this.#curves.set(name, new Curve(name, name === "loss" ? 240 : 130));
      return this.#curves.get(name).element;
    });
    for (const name of names)
      this.#curves.get(name).update([{label: name, points: pointsOf(curve, name)}]);
  }
}
