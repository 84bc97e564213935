// A state as a shape, a word and a colour.

import {SHAPES, stateName, tone} from "../model/names.js";

import {el, setAttribute, setText} from "./dom.js";

export function badge(state = "") {
  const node =
      el("span", {class: "badge"}, el("span", {class: "shape", "aria-hidden": "true"}),
         el("span", {class: "word"}));
  setBadge(node, state);
  return node;
}

export function setBadge(node, state, word = stateName(state), of = tone(state)) {
  setAttribute(node, "data-tone", of);
  setText(node.firstChild, SHAPES[of]);
  setText(node.lastChild, word);
}
