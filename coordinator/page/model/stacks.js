// Stacks of ranks, merged where their main threads stand at the same place. Pure.

import {count} from "./format.js";
import {formatRanks} from "./ranks.js";

// [{ranks, place, error, main, rest}], those of most ranks last: the odd one is what people look
// for. `main`: text of the main thread, `rest`: that of the other threads of the first of these
// ranks.
export function mergeStacks(stacks) {
  const groups = new Map();
  for (const stack of stacks) {
    const {main, rest} = threads(stack.text ?? "");
    const [place, error] = [stack.place ?? "", stack.error ?? ""];
    const key = JSON.stringify([place, error, main.split("\n").map(frame)]);
    const group = groups.get(key);
    if (group)
      group.ranks.push(stack.rank);
    else
      groups.set(key, {ranks: [stack.rank], place, error, main, rest});
  }
  return [...groups.values()].sort(
      (a, b) => a.ranks.length - b.ranks.length || a.ranks[0] - b.ranks[0]);
}

// Most characters of a list of ranks in a sentence.
const MOST_LIST = 80;

// What a sentence says of an answer that has no room for all ranks; "": it has all. `asked`: the
// ranks; none: all `worldSize` of them. `found`: stacks or records, `nouns`: what they are called.
export function leftOut(nouns, asked, worldSize, found, more) {
  if (!more) return "";
  const answered = new Set(found.map((one) => one.rank));
  const wanted = asked.length ? asked : Array.from({length: worldSize}, (_, rank) => rank);
  const missing = wanted.filter((rank) => !answered.has(rank));
  const where = formatRanks(missing);
  const list = where.length > MOST_LIST ? `${where.slice(0, where.lastIndexOf(",", MOST_LIST))}, …` :
                                          where;
  return `The ${nouns} of ${missing.length} of ${count(wanted.length, "rank")} had no room in the ` +
      `answer: ${missing.length === 1 ? "rank" : "ranks"} ${list}.`;
}

// gdb tells thread 1, the main one, last, after what it says of itself; py-spy tells it first.
function threads(text) {
  const parts = text.split(/^(?=Thread \S+ \()/m);
  const own = parts.findIndex((part) => /^Thread 1 \(/.test(part));
  if (own < 0 || parts.length < 2) return {main: text.trimEnd(), rest: ""};
  return {
    main: parts[own].trimEnd(),
    rest: parts.filter((_, i) => i !== own && i > 0).join("").trimEnd()
  };
}

// What is the same in two ranks that stand at the same place: function, file and line, without
// addresses, arguments and numbers of threads.
function frame(line) {
  const native = /^#\d+\s+(?:0x[0-9a-f]+ in )?(.+?) \(.*\)(?: (?:at|from) (\S+))?$/.exec(line);
  if (native) return `${native[1]} ${native[2] ?? ""}`;
  return line.replace(/0x[0-9a-f]+/gi, "0x")
      .replace(/\b(process|thread|pid|tid|lwp|id)(\W+)\d+/gi, "$1$2");
}
