// Light, dark, or as the system says. Kept in this browser.

import {el} from "./dom.js";

const KEY = "meshrun-theme";
const ORDER = ["system", "light", "dark"];

export function startTheme(button) {
  apply(button, localStorage.getItem(KEY) ?? "system");
  button.addEventListener("click", () => nextTheme(button));
}

export function nextTheme(button) {
  const now = document.documentElement.dataset.theme ?? "system";
  const next = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
  localStorage.setItem(KEY, next);
  apply(button, next);
}

function apply(button, theme) {
  const chosen = ORDER.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = chosen;
  const [shape, word] = {system: ["◐", "System"], light: ["○", "Light"], dark: [
                           "●", "Dark"
                         ]}[chosen];
  button.replaceChildren(`${shape} `, el("span", {class: "wide-only"}, word));
  button.setAttribute("aria-label", `Theme: ${chosen}. Change it`);
}
