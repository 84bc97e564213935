// The mesh as a grid of ranks. Colour, shape and text of a cell say how far its rank is behind;
// arrow keys move.

import {el, setAttribute, setStyle, setText} from "./dom.js";

const SHAPES = {
  run: ["●", "◔", "◑", "◕"],
  begin: ["○"],
  end: ["■"],
  fail: ["", "", "", "✕"],
  lost: ["", "", "", "?"]
};
const FLOW_COLUMNS = 16;
// So many ranks are seen at once only as small cells, with their shapes alone; the panel and the
// list beside them have the words.
const COMPACT_RANKS = 128;
const COMPACT_COLUMNS = 32;

export class RankGrid {
  #cells = new Map();
  #rows = [];
  #layout = "";
  #chosen = -1;

  // choose(rank): another rank was chosen. open(rank): Enter.
  constructor({choose, open}) {
    this.onChoose = choose;
    this.onOpen = open;
    this.grid = el("div", {class: "rank-grid", role: "grid", "aria-label": "Ranks"});
    this.element = el("div", {class: "scroll rank-scroll"}, this.grid);
    this.grid.addEventListener("click", (event) => {
      const cell = event.target.closest("[data-rank]");
      if (cell) this.choose(Number(cell.dataset.rank), true);
    });
    this.grid.addEventListener("keydown", (event) => this.#key(event));
  }

  get chosen() {
    return this.#chosen;
  }

  // ranks: of the API. mesh: its axes. look(rank) -> {kind, level, text, title}.
  update(ranks, mesh, look) {
    const layout = layoutOf(ranks, mesh);
    const signature = JSON.stringify(layout.map((row) => [row.label, row.ranks]));
    if (signature !== this.#layout) {
      this.#layout = signature;
      this.#build(layout);
    }
    for (const rank of ranks) {
      const cell = this.#cells.get(rank.assignment.rank);
      if (cell) paint(cell, look(rank));
    }
  }

  choose(rank, focus = false) {
    const cell = this.#cells.get(rank);
    if (!cell) return;
    const before = this.#cells.get(this.#chosen);
    if (before && before !== cell) {
      setAttribute(before, "aria-selected", "false");
      setAttribute(before, "tabindex", "-1");
    }
    setAttribute(cell, "aria-selected", "true");
    setAttribute(cell, "tabindex", "0");
    this.#chosen = rank;
    if (focus) cell.focus();
    this.onChoose(rank);
  }

  focus() {
    (this.#cells.get(this.#chosen) ?? this.#cells.values().next().value)?.focus();
  }

  #build(layout) {
    this.#cells.clear();
    this.#rows = layout.map((row) => row.ranks);
    const columns = Math.max(1, ...this.#rows.map((row) => row.length));
    setStyle(this.grid, "--columns", columns);
    setAttribute(this.grid, "data-compact", this.#rows.flat().length > COMPACT_RANKS ? "" : null);
    setAttribute(this.grid, "data-labels", layout.some((row) => row.label) ? "" : null);
    setAttribute(this.grid, "aria-rowcount", layout.length);
    setAttribute(this.grid, "aria-colcount", columns + 1);
    this.grid.replaceChildren(...layout.map(
        (row) =>
            el("div", {role: "row", class: "rank-row"},
               el("div", {role: "rowheader", class: "rank-label"}, row.label),
               ...row.ranks.map((rank) => this.#make(rank)))));
    if (!this.#cells.has(this.#chosen)) this.#chosen = -1;
    const first = this.#cells.get(this.#chosen) ?? this.#cells.values().next().value;
    if (first) setAttribute(first, "tabindex", "0");
    if (this.#chosen >= 0) setAttribute(first, "aria-selected", "true");
  }

  #make(rank) {
    const cell = el(
        "div", {
          role: "gridcell",
          class: "rank-cell",
          tabindex: "-1",
          "data-rank": rank,
          "aria-selected": "false"
        },
        el("span", {class: "rank-number"}, String(rank)),
        el("span", {class: "rank-shape", "aria-hidden": "true"}), el("span", {class: "rank-text"}));
    this.#cells.set(rank, cell);
    return cell;
  }

  #key(event) {
    const rank = Number(event.target.closest("[data-rank]")?.dataset.rank ?? -1);
    const row = this.#rows.findIndex((one) => one.includes(rank));
    if (row < 0) return;
    const column = this.#rows[row].indexOf(rank);
    const at = (r, c) => this.#rows[Math.min(this.#rows.length - 1, Math.max(0, r))].at(
        Math.min(c, this.#rows[Math.min(this.#rows.length - 1, Math.max(0, r))].length - 1));
    const next = {
      ArrowLeft: () => at(row, Math.max(0, column - 1)),
      ArrowRight: () => at(row, column + 1),
      ArrowUp: () => at(row - 1, column),
      ArrowDown: () => at(row + 1, column),
      Home: () => this.#rows[row][0],
      End: () => this.#rows[row].at(-1)
    }[event.key];
    if (event.key === "Enter")
      this.onOpen(rank);
    else if (next)
      this.choose(next(), true);
    else
      return;
    event.preventDefault();
  }
}

function paint(cell, {kind, level, text, title}) {
  setAttribute(cell, "data-kind", kind);
  setAttribute(cell, "data-level", level);
  setAttribute(cell, "aria-label", title);
  setText(cell.children[1], (SHAPES[kind] ?? SHAPES.run)[level] ?? "");
  setText(cell.children[2], text);
}

// Rows with their labels: along the last axis of the mesh where it has several, else a row for each
// node, else as they come.
function layoutOf(ranks, mesh) {
  const axes = mesh ?? [];
  if (ranks.length > COMPACT_RANKS) return compactLayout(ranks, axes);
  if (axes.length > 1 &&
      ranks.every((rank) => rank.assignment.meshCoordinates?.length === axes.length)) {
    const rows = new Map();
    for (const {assignment} of ranks) {
      const outer = assignment.meshCoordinates.slice(0, -1);
      const label = outer.map((place, i) => `${axes[i].name} ${place}`).join(", ");
      rows.set(label, [...(rows.get(label) ?? []), assignment]);
    }
    return [...rows].map(
        ([label, row]) => ({
          label,
          ranks: row.sort((a, b) => a.meshCoordinates.at(-1) - b.meshCoordinates.at(-1))
                     .map((one) => one.rank)
        }));
  }
  const nodes = new Map();
  for (const rank of ranks)
    nodes.set(rank.nodeName, [...(nodes.get(rank.nodeName) ?? []), rank.assignment.rank]);
  const numbers = ranks.map((rank) => rank.assignment.rank);
  if (nodes.size > 1 && nodes.size < ranks.length)
    return [...nodes].map(([label, row]) => ({label, ranks: row}));
  const rows = [];
  for (let i = 0; i < numbers.length; i += FLOW_COLUMNS)
    rows.push({label: "", ranks: numbers.slice(i, i + FLOW_COLUMNS)});
  return rows;
}

// As many whole rows of the mesh as fit stand beside each other.
function compactLayout(ranks, axes) {
  const inner = axes.length > 1 ? axes.at(-1).size : 1;
  const columns =
      inner > COMPACT_COLUMNS ? COMPACT_COLUMNS : Math.floor(COMPACT_COLUMNS / inner) * inner;
  const rows = [];
  for (let i = 0; i < ranks.length; i += columns) {
    const row = ranks.slice(i, i + columns).map((rank) => rank.assignment.rank);
    rows.push({label: `from ${row[0]}`, ranks: row});
  }
  return rows;
}

export function axisWords(mesh) {
  return (mesh ?? []).map((axis) => `${axis.name}=${axis.size}`).join(", ");
}

// words: what the four levels mean.
export function legend(words) {
  const entries = [
    ...words.map((word, level) => ["run", level, word]), ["fail", 3, "failed"],
    ["lost", 3, "lost with its node"], ["end", 0, "ended"], ["begin", 0, "starts"]
  ];
  return el(
      "ul", {class: "rank-legend", "aria-label": "Meaning of the cells"},
      ...entries.map(
          ([kind, level, text]) => el(
              "li", {},
              el("span",
                 {class: "rank-key", "data-kind": kind, "data-level": level, "aria-hidden": "true"},
                 SHAPES[kind][level]),
              ` ${text}`)));
}
