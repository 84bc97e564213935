// Numbers of ranks as people write them: "0,4-7". Pure.

// [0, 4, 5, 6, 7] -> "0,4-7".
export function formatRanks(ranks) {
  const sorted = [...ranks].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j += 1;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(",");
}

// The ranks, none for "" (which means all), or null where the text says none.
export function parseRanks(text) {
  if (!text.trim()) return [];
  const ranks = [];
  for (const part of text.split(",")) {
    const match = /^\s*(\d+)(?:\s*-\s*(\d+))?\s*$/.exec(part);
    if (!match) return null;
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last < first || last - first > 65536) return null;
    for (let rank = first; rank <= last; rank += 1) ranks.push(rank);
  }
  return ranks;
}
