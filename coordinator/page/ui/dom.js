// Elements without a framework: made once, then only what changed is written.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  assign(node, attributes);
  node.append(...children.flat().filter(
      (child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function assign(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on"))
      node.addEventListener(name.slice(2), value);
    else if (value === true)
      node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      node.setAttribute(name, value);
  }
}

export function setText(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, value);
  }
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// A number that the style sheet uses, such as the width of a bar.
export function setStyle(node, name, value) {
  if (node.style.getPropertyValue(name) !== String(value)) node.style.setProperty(name, value);
}

// A table whose rows a phone shows as blocks. Roles stand there in words, since some browsers
// forget them with the layout: each row that is added says role="row", each cell role="cell".
export function headedTable(name, caption, titles, body) {
  return el(
      "table", {class: name, role: "table"}, el("caption", {class: "hidden-text"}, caption),
      el("thead", {role: "rowgroup"},
         el("tr", {role: "row"},
            ...titles.map((title) => el("th", {role: "columnheader", scope: "col"}, title)))),
      body);
}

const kept = new WeakMap();

// Makes the children of `parent` those of `items`: create(item) makes a node once, update(node,
// item) brings it up to date.
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const before = kept.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (after.has(key)) continue;
    const node = before.get(key) ?? create(item);
    after.set(key, node);
    before.delete(key);
    if (node === place)
      place = node.nextSibling;
    else
      parent.insertBefore(node, place);
    update(node, item);
  }
  for (const node of before.values()) node.remove();
  kept.set(parent, after);
}

// Says it to a screen reader, without moving anything.
export function announce(text) {
  const region = document.getElementById("announcer");
  if (region) region.textContent = text;
}

// The time that an update takes stands in the browser's performance timeline as "meshrun:<name>".
export function measured(name, work) {
  const start = performance.now();
  work();
  performance.measure(`meshrun:${name}`, {start, end: performance.now()});
  if (performance.getEntriesByName(`meshrun:${name}`).length > 500)
    performance.clearMeasures(`meshrun:${name}`);
}
