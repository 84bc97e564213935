// Points of a job's progress as series to draw. Pure.

const MOST_TICKS = 50;
// The width of a range, divided by its larger end.
const LEAST_RANGE = 1e-12;

// Names of what the job reports, the loss first.
export function seriesNames(curve) {
  const names = new Set();
  let hasLoss = false;
  for (const point of curve) {
    if (point.loss !== undefined) hasLoss = true;
    for (const name of Object.keys(point.metrics ?? {})) names.add(name);
  }
  return [...(hasLoss ? ["loss"] : []), ...[...names].sort()];
}

// [{x, y, at}] in the order of the reports; `x` is the step. `y` is a text where it is no finite
// number: "NaN", "Infinity" or "-Infinity".
export function pointsOf(curve, name) {
  const points = [];
  for (const point of curve) {
    const value = name === "loss" ? point.loss : point.metrics?.[name];
    if (value !== undefined) points.push({x: point.step, y: value, at: point.at});
  }
  return points;
}

// Where steps go back, as after a restart, another line begins.
export function segments(points) {
  const list = [];
  for (const point of points) {
    const last = list.at(-1)?.at(-1);
    if (last && point.x > last.x)
      list.at(-1).push(point);
    else
      list.push([point]);
  }
  return list;
}

// A line is broken where a point cannot be drawn.
export function pieces(points, isDrawn) {
  const list = [];
  let isOpen = false;
  for (const point of points) {
    const isPart = isDrawn(point);
    if (isPart && isOpen)
      list.at(-1).push(point);
    else if (isPart)
      list.push([point]);
    isOpen = isPart;
  }
  return list;
}

// Round values from `low` to `high`, about `wanted` of them, at most MOST_TICKS. A range of almost
// equal numbers has one.
export function ticks(low, high, wanted) {
  const range = high - low;
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (!(range > 0 && range < Infinity) || range / size < LEAST_RANGE) return [low];
  const rough = range / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.7);
  if (!(step > 0)) return [low];
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from(
      {length: Math.max(0, Math.min(MOST_TICKS, count))},
      (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// Powers of ten, and 2 and 5 of each where there are few.
export function logTicks(low, high) {
  if (high / low < 12) return ticks(low, high, 5).filter((value) => value > 0);
  const list = [];
  const few = Math.log10(high / low) < 3;
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of few ? [1, 2, 5] : [1]) {
      const value = Number((factor * 10 ** power).toPrecision(3));
      if (value >= low * 0.999 && value <= high * 1.001) list.push(value);
    }
  }
  return list;
}
