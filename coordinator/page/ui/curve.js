// A curve with all points that were reported: drawn, read by hovering or by keys, and as a table.
// What is no finite number is read, and stands in the table; the line has a gap there.

import {logTicks, pieces, segments, ticks} from "../model/curves.js";
import {count, formatClock, formatNumber} from "../model/format.js";

import {el, setAttribute, setText, show, svg} from "./dom.js";

const LEFT = 58;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 26;

export class Curve {
  #series = [];
  #scale = null;
  #at = {series: 0, point: -1};
  #log = false;
  #tableRows = 0;

  // name: of what is drawn over the step. height: in pixels.
  constructor(name, height) {
    this.name = name;
    this.height = height;
    this.#build();
    new ResizeObserver(() => this.#draw()).observe(this.plot);
  }

  // [{label, points}], one for each job.
  update(series) {
    this.#series = series;
    if (this.#at.point < 0 || !this.#point()) this.#at = {series: 0, point: -1};
    this.#draw();
    this.#readOut();
    if (this.details.open) this.#fillTable();
  }

  #build() {
    this.canvas = svg("svg", {"aria-hidden": "true", class: "curve-canvas"});
    this.plot =
        el("div", {
          class: "curve-plot",
          role: "slider",
          tabindex: "0",
          "aria-label": `${this.name} by step`,
          "aria-valuemin": "0",
          "aria-valuemax": "0",
          "aria-valuenow": "0",
          "aria-valuetext": "no point yet"
        },
           this.canvas);
    this.plot.style.height = `${this.height}px`;
    this.reading = el("span", {class: "curve-reading"});
    this.logBox = el("input", {type: "checkbox", id: `log-${this.name}`});
    const logLabel = el("label", {class: "curve-log", "for": this.logBox.id}, this.logBox, " log");
    this.legend = el("p", {class: "curve-legend", hidden: true});
    this.table =
        el("table", {class: "plain"}, el("caption", {}, `${this.name}: reported points`),
           el("thead"), el("tbody"));
    this.details =
        el("details", {}, el("summary", {}, "As a table"),
           el("div", {
             class: "scroll short",
             tabindex: "0",
             role: "region",
             "aria-label": `${this.name} as a table`
           },
              this.table));
    this.element =
        el("figure", {class: "curve", "data-curve": this.name},
           el("figcaption", {}, el("span", {class: "curve-name", title: this.name}, this.name),
              this.reading, logLabel),
           this.legend, this.plot, this.details);
    this.logBox.addEventListener("change", () => {
      this.#log = this.logBox.checked;
      this.#draw();
    });
    this.details.addEventListener("toggle", () => {
      this.#tableRows = 0;
      if (this.details.open) this.#fillTable();
    });
    this.plot.addEventListener("pointermove", (event) => this.#pointAt(event));
    this.plot.addEventListener("pointerleave", () => {
      if (document.activeElement !== this.plot) this.#choose(-1);
    });
    this.plot.addEventListener("keydown", (event) => this.#key(event));
  }

  #draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    setAttribute(this.canvas, "viewBox", `0 0 ${width} ${this.height}`);
    const all = this.#series.flatMap(({points}) => points);
    const drawn = all.filter((point) => this.#isDrawn(point));
    this.canvas.replaceChildren();
    this.#scale = drawn.length ? scaleOf(all, drawn, width, this.height, this.#log) : null;
    setAttribute(this.element, "data-points", all.length);
    setAttribute(
        this.plot, "aria-valuemax",
        Math.max(0, (this.#series[this.#at.series]?.points.length ?? 0) - 1));
    if (!this.#scale) {
      this.canvas.append(svg("text", {x: width / 2, y: this.height / 2, class: "curve-empty"}));
      this.canvas.lastChild.textContent =
          all.some(isNumber) ? "no value above 0 to show on a log scale" :
          all.length         ? `no finite number in ${count(all.length, "report")}` :
                               "no report yet";
      return;
    }
    drawAxes(this.canvas, this.#scale, width, this.height);
    this.#series.forEach(
        ({points}, i) => drawSeries(
            this.canvas, points, (point) => this.#isDrawn(point), this.#scale, i));
    this.mark = svg("g", {class: "curve-mark"}, svg("line", {}), svg("circle", {r: 4.5}));
    this.canvas.append(this.mark);
    this.#drawMark();
    show(this.legend, this.#series.length > 1);
    if (this.#series.length > 1) {
      this.legend.replaceChildren(
          ...this.#series.map(({label}, i) => el("span", {class: `legend series-${i}`}, label)));
    }
  }

  #isDrawn(point) {
    return isNumber(point) && (!this.#log || point.y > 0);
  }

  #point() {
    return this.#series[this.#at.series]?.points[this.#at.point];
  }

  #choose(point, series = this.#at.series) {
    this.#at = {series, point};
    this.#drawMark();
    this.#readOut();
  }

  #drawMark() {
    const point = this.#point();
    if (!this.mark || !this.#scale) return;
    setAttribute(this.mark, "visibility", point ? "visible" : "hidden");
    if (!point) return;
    const x = this.#scale.x(point.x);
    const [line, dot] = this.mark.children;
    for (const [name, value] of [["x1", x], ["x2", x], ["y1", TOP], ["y2", this.height - BOTTOM]])
      line.setAttribute(name, value);
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", this.#height(point));
    setAttribute(dot, "visibility", this.#isDrawn(point) ? null : "hidden");
  }

  // What cannot be drawn is at the bottom.
  #height(point) {
    return this.#isDrawn(point) ? this.#scale.y(point.y) : this.height - BOTTOM;
  }

  // The chosen point, else the last one.
  #readOut() {
    const chosen = this.#point();
    const point = chosen ?? this.#series[0]?.points.at(-1);
    const label =
        this.#series.length > 1 && chosen ? `${this.#series[this.#at.series].label}, ` : "";
    const value = point ? formatNumber(point.y) : "";
    const time = chosen ? `, ${formatClock(Date.parse(chosen.at))}` : "";
    setText(this.reading, chosen ? `${label}step ${point.x}: ${value}${time}` : value);
    setAttribute(this.reading, "data-tone", point && !isNumber(point) ? "bad" : null);
    setAttribute(this.plot, "aria-valuenow", Math.max(0, this.#at.point));
    setAttribute(
        this.plot, "aria-valuetext",
        point ? `${label}step ${point.x}, ${this.name} ${formatNumber(point.y)}` : "no point yet");
  }

  #pointAt(event) {
    if (!this.#scale) return;
    const box = this.plot.getBoundingClientRect();
    let best = {distance: Infinity};
    this.#series.forEach(({points}, series) => points.forEach((point, i) => {
      const distance = Math.abs(this.#scale.x(point.x) - (event.clientX - box.left)) +
          Math.abs(this.#height(point) - (event.clientY - box.top)) / 50;
      if (distance < best.distance) best = {distance, series, i};
    }));
    if (best.i !== undefined) this.#choose(best.i, best.series);
  }

  #key(event) {
    const points = this.#series[this.#at.series]?.points ?? [];
    const now = this.#at.point < 0 ? points.length - 1 : this.#at.point;
    const next = {
      ArrowLeft: now - 1,
      ArrowRight: now + 1,
      Home: 0,
      End: points.length - 1,
      PageUp: now - 10,
      PageDown: now + 10
    }[event.key];
    if ((event.key === "ArrowUp" || event.key === "ArrowDown") && this.#series.length > 1) {
      this.#choose(0, (this.#at.series + 1) % this.#series.length);
    } else if (next === undefined || !points.length) {
      return;
    } else {
      this.#choose(Math.min(points.length - 1, Math.max(0, next)));
    }
    event.preventDefault();
  }

  #fillTable() {
    const [head, body] = [this.table.tHead, this.table.tBodies[0]];
    const rows = this.#series.flatMap(({label, points}) => points.map((point) => [label, point]));
    if (rows.length < this.#tableRows || this.#series.length > 1) this.#tableRows = 0;
    if (!this.#tableRows) {
      const titles = [...(this.#series.length > 1 ? ["Job"] : []), "Step", this.name, "Time"];
      head.replaceChildren(el("tr", {}, ...titles.map((title) => el("th", {scope: "col"}, title))));
      body.replaceChildren();
    }
    for (const [label, point] of rows.slice(this.#tableRows)) {
      body.append(
          el("tr", {}, ...(this.#series.length > 1 ? [el("td", {}, label)] : []),
             el("td", {class: "number"}, String(point.x)),
             el("td", {class: "number", "data-value": String(point.y)}, formatNumber(point.y)),
             el("td", {}, formatClock(Date.parse(point.at)))));
    }
    this.#tableRows = rows.length;
  }
}

function isNumber(point) {
  return Number.isFinite(point.y);
}

// Over the steps of all points, and the values of those that are drawn.
function scaleOf(all, drawn, width, height, log) {
  const xs = all.map((point) => point.x);
  const ys = drawn.map((point) => point.y);
  const range = (values) => values.reduce(
      ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
  const [x0, x1] = range(xs);
  let [y0, y1] = range(ys);
  if (y0 === y1)
    [y0, y1] =
        log ? [y0 / 2, y1 * 2] : [y0 - (Math.abs(y0) / 2 || 0.5), y1 + (Math.abs(y1) / 2 || 0.5)];
  const place = (value) =>
      (log ? Math.log(value / y0) / Math.log(y1 / y0) : (value - y0) / (y1 - y0));
  return {
    range: {x0, x1, y0, y1, log},
    x: (value) => LEFT + (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5) * (width - LEFT - RIGHT),
    y: (value) => height - BOTTOM - place(value) * (height - TOP - BOTTOM),
  };
}

function drawAxes(canvas, scale, width, height) {
  const {x0, x1, y0, y1, log} = scale.range;
  const label = (x, y, anchor, value) => {
    const node = svg("text", {x, y, class: "curve-tick", "text-anchor": anchor});
    node.textContent = formatNumber(value);
    return node;
  };
  for (const value of log ? logTicks(y0, y1) : ticks(y0, y1, Math.max(3, height / 45))) {
    const y = scale.y(value);
    canvas.append(
        svg("line", {x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "curve-grid"}),
        label(LEFT - 6, y + 4, "end", value));
  }
  for (const value of ticks(x0, x1, Math.max(2, width / 110)))
    canvas.append(label(scale.x(value), height - 8, "middle", value));
}

// The points stand in one path of dots: thousands of them cost one element.
function drawSeries(canvas, points, isDrawn, scale, index) {
  const place = (point) => `${scale.x(point.x).toFixed(1)} ${scale.y(point.y).toFixed(1)}`;
  const line = (piece) => `M${piece.map(place).join("L")}`;
  const lines = segments(points).map((part) => pieces(part, isDrawn).map(line).join(""));
  // What was before a restart stays, and steps back.
  const before = lines.slice(0, -1).join("");
  if (before) canvas.append(svg("path", {d: before, class: `curve-line before series-${index}`}));
  const drawn = points.filter(isDrawn);
  const dots = drawn.map((point) => `M${place(point)}h0`).join("");
  canvas.append(
      svg("path", {d: lines.at(-1) ?? "", class: `curve-line series-${index}`}),
      svg("path",
          {d: dots, class: `curve-dots series-${index}${drawn.length > 300 ? " many" : ""}`}));
}
