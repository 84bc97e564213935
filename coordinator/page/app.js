// The page: which view is shown, and what is the same in all of them.

import {formatClock, formatDuration} from "./model/format.js";
import {routeOf} from "./model/route.js";
import {get} from "./net/api.js";
import {link, onLink, setServerClock} from "./net/link.js";
import {announce, el, setAttribute, setText, show} from "./ui/dom.js";
import {setViewKeys, showKeys, startKeys} from "./ui/keys.js";
import {nextTheme, startTheme} from "./ui/theme.js";
import {CompareView} from "./views/compare.js";
import {JobView} from "./views/job.js";
import {JobsView} from "./views/jobs.js";
import {NodesView} from "./views/nodes.js";
import {OverviewView} from "./views/overview.js";

const ROUTES = [
  [/^#\/jobs\/([^/]+)$/, "jobs", JobView],
  [/^#\/compare\/([^/]+)\/([^/]+)$/, "jobs", CompareView],
  [/^#\/jobs$/, "jobs", JobsView],
  [/^#\/nodes$/, "nodes", NodesView],
  [/^(#\/?)?$/, "overview", OverviewView],
];

const main = document.getElementById("main");
const away = document.getElementById("away");
const awayWords = el("span", {role: "alert"});
// A screen reader hears once that the coordinator is away, not each second for how long.
const awayTime = el("span", {"aria-hidden": "true"});
away.append(awayWords, awayTime);
const themeButton = document.getElementById("theme");
let view = null;
// What the caller may do: {user, roles, may}.
const me = {
  user: "",
  roles: [],
  may: new Set()
};

function route() {
  if (location.hash === "#main") return;
  view?.stop();
  const hash = location.hash || "#/";
  const found = routeOf(hash, ROUTES);
  for (const entry of document.querySelectorAll("nav [data-page]")) {
    setAttribute(entry, "aria-current", entry.dataset.page === found?.page ? "page" : null);
  }
  if (!found) {
    view = null;
    document.title = "meshrun";
    setViewKeys({});
    main.replaceChildren(
        el("h1", {tabindex: "-1"}, "There is no such page"),
        el("p", {}, el("a", {href: "#/"}, "Overview")));
    return;
  }
  const isFirst = view === null && !main.querySelector("h1");
  view = new found.view({me, parameters: found.parameters});
  document.title = `${view.title} – meshrun`;
  main.replaceChildren(view.element);
  setViewKeys(view.keys ?? {});
  view.start();
  if (!isFirst) {
    window.scrollTo(0, 0);
    main.querySelector("h1")?.focus();
  }
}

function showLink() {
  show(away, link.awaySince !== null);
  if (link.awaySince === null) {
    announce("The coordinator answers again.");
    if (!me.user) askMe();
    return;
  }
  const leader = link.leader ? ` The coordinator that leads now is ${link.leader}.` : "";
  setText(
      awayWords,
      `${link.message}${leader} Away since ${formatClock(link.awaySince)}. ` +
          "What stands here is as it was; the page goes on by itself.");
  countAway();
}

function countAway() {
  setText(awayTime, ` (${formatDuration((Date.now() - link.awaySince) / 1000)})`);
}

async function askMe() {
  try {
    const answer = await get("/me");
    Object.assign(
        me, {user: answer.user ?? "", roles: answer.roles ?? [], may: new Set(answer.may ?? [])});
    setText(document.getElementById("who"), [
      me.user, ["operate", "submit", "read"].find((role) => me.roles.includes(role))
    ].filter(Boolean).join(" · "));
    view?.allowed?.();
    setServerClock((await get("/cluster", {events: 1})).now);
  } catch (error) {
    if (error.status === 0) setTimeout(askMe, 2000);
  }
}

startTheme(themeButton);
document.getElementById("keys").addEventListener("click", showKeys);
startKeys({
  "?": showKeys,
  t: () => nextTheme(themeButton),
  1: () => {
    location.hash = "#/";
  },
  2: () => {
    location.hash = "#/jobs";
  },
  3: () => {
    location.hash = "#/nodes";
  },
  "/": () => main.querySelector("input[type=search]")?.focus()
});
onLink(showLink);
setInterval(() => {
  if (!away.hidden) countAway();
}, 1000);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", route);
askMe();
route();
