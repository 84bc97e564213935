// Times, durations and numbers as text for people, in the forms of the command meshrun. Pure.

// RFC 3339 to milliseconds since 1970; NaN where there is no time.
export function parseTime(text) {
  return text ? Date.parse(text) : NaN;
}

// "3.671s", as the API writes durations, to seconds.
export function parseDuration(text) {
  return text ? Number.parseFloat(text) : 0;
}

// "10m" to "600s", as the API reads durations: in whole milliseconds, since it takes no more than
// nine digits behind the point. What is not a duration goes as it is: the coordinator says what is
// wrong.
export function apiDuration(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$/.exec(text);
  if (!match) return text;
  const ms = {ms: 1, s: 1000, m: 60e3, h: 3600e3, d: 86400e3}[match[2] ?? "s"];
  return `${Math.round(Number(match[1]) * ms) / 1000}s`;
}

// At most two units: "42s", "3m5s", "2h10m", "4d3h".
export function formatDuration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}s`;
  const two = (large, small, unit, rest) =>
      (small ? `${large}${unit}${small}${rest}` : `${large}${unit}`);
  if (whole < 3600) return two(Math.floor(whole / 60), whole % 60, "m", "s");
  if (whole < 86400) return two(Math.floor(whole / 3600), Math.floor(whole / 60) % 60, "h", "m");
  return two(Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, "d", "h");
}

export function formatAgo(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  return seconds < 2 ? "just now" : `${formatDuration(seconds)} ago`;
}

// Time of day in the reader's zone, with the date where it is another day.
export function formatClock(ms, now = Date.now()) {
  if (!Number.isFinite(ms)) return "–";
  const at = new Date(ms);
  const time = at.toLocaleTimeString(
      [], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
  if (at.toDateString() === new Date(now).toDateString()) return time;
  return `${at.getFullYear()}-${String(at.getMonth() + 1).padStart(2, "0")}-${
      String(at.getDate()).padStart(2, "0")} ${time}`;
}

// Four significant digits, as %.4g. The API writes NaN and infinities as text.
export function formatNumber(value) {
  if (value === undefined || value === null) return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-4 && size < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
}

// "since 13:35:00", the time of a job's last step, or "seen since 14:05:00", where that is not
// known; "" for a job that makes steps. Of speedOf.
export function formatIdle({idleSince, seenSince}) {
  if (Number.isFinite(idleSince)) return `since ${formatClock(idleSince * 1000)}`;
  return Number.isFinite(seenSince) ? `seen since ${formatClock(seenSince * 1000)}` : "";
}

export function formatRate(stepsPerSecond) {
  if (!stepsPerSecond || stepsPerSecond <= 0) return "";
  const digits = (value) => (value >= 100 ? Math.round(value) : Number(value.toPrecision(3)));
  return stepsPerSecond >= 1 ? `${digits(stepsPerSecond)} step/s` :
                               `${digits(1 / stepsPerSecond)} s/step`;
}

export function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return unit ? `${value.toFixed(1)} ${units[unit]}` : `${bytes} B`;
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
