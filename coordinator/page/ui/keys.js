// Shortcuts of one key, which a person can turn off: screen readers and speech input use such keys
// themselves.

import {el} from "./dom.js";

const KEY = "meshrun-shortcuts";

const everywhere = [
  ["?", "These shortcuts"],
  ["1", "Overview"],
  ["2", "Jobs"],
  ["3", "Cluster"],
  ["/", "Search: jobs, or the log of a job"],
  ["t", "Light, dark or the system's theme"],
];
const ofJob = [
  ["s", "Stack of all ranks"],
  ["l", "Log"],
  ["g", "Grid of ranks"],
  ["f", "What failed first"],
  ["c", "Cancel, after a question"],
];
const ofGrid = [
  ["arrows", "Another rank"], ["Home, End", "First and last rank of the row"],
  ["Enter", "Log of the rank"]
];
const ofCurve = [["← →", "Next and previous point"], ["Home, End", "First and last point"]];

let handlers = {};

// The keys that the present view adds: {s: () => ...}.
export function setViewKeys(keys) {
  handlers = keys;
}

export function startKeys(global) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isWriting(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key !== "?" && !enabled()) return;
    const handler = handlers[event.key] ?? global[event.key];
    if (!handler) return;
    event.preventDefault();
    handler();
  });
}

function isWriting(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target.matches("textarea, select, input:not([type=checkbox])");
}

function enabled() {
  return localStorage.getItem(KEY) !== "off";
}

export function showKeys() {
  const checkbox = el("input", {type: "checkbox", id: "shortcuts-on", checked: enabled()});
  checkbox.addEventListener(
      "change", () => localStorage.setItem(KEY, checkbox.checked ? "on" : "off"));
  const dialog =
      el("dialog", {class: "dialog", "aria-labelledby": "keys-title"},
         el("h2", {id: "keys-title"}, "Keys"),
         ...[["Everywhere", everywhere], ["A job", ofJob], ["In the grid", ofGrid],
             ["In a curve", ofCurve]]
             .flatMap(section),
         el("p", {}, checkbox, " ",
            el("label", {"for": "shortcuts-on"}, "Shortcuts of one key are on")),
         el("form", {method: "dialog", class: "buttons"}, el("button", {}, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function section([title, keys]) {
  return [
    el("h3", {}, title),
    el("dl", {class: "keys"},
       ...keys.map(
           ([key, what]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what))))
  ];
}
