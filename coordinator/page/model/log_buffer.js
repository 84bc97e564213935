// Lines of logs that follow each other in pieces, in bounded memory. Pure.

export const MOST_LINES = 20000;
const MOST_LINE_LENGTH = 4096;

const bytes = new TextEncoder();

export class LogBuffer {
  // {number, rank, stream, text}; `number` counts lines from the first on.
  lines = [];
  dropped = 0;
  #open = new Map();
  #next = new Map();
  #resuming = new Set();
  #count = 0;

  // What comes now is from a new connection, which begins before the end of what is here.
  resume() {
    this.#resuming = new Set(this.#next.keys());
  }

  // `piece`: as the API's. After resume() what was there before adds nothing.
  add(piece) {
    const key = `${piece.rank} ${piece.stream} ${piece.generation}`;
    let text = piece.text;
    const size = sizeOf(text);
    if (this.#resuming.has(key)) {
      const next = this.#next.get(key);
      if (piece.offset + size <= next) return;
      this.#resuming.delete(key);
      if (piece.offset < next) text = withoutBytes(text, next - piece.offset);
    }
    if (piece.dropped > 0) this.#push(piece, `… ${piece.dropped} bytes are no longer kept`);
    this.#next.set(key, piece.offset + size);
    const whole = (this.#open.get(key) ?? "") + text;
    const parts = whole.split("\n");
    this.#open.set(key, parts.pop().slice(-MOST_LINE_LENGTH));
    for (const part of parts) this.#push(piece, part);
    this.#trim();
  }

  // What has no newline yet is a line too once the stream is at its end.
  end() {
    for (const [key, text] of this.#open) {
      if (!text) continue;
      const [rank, stream] = key.split(" ");
      this.#push({rank: Number(rank), stream}, text);
    }
    this.#open.clear();
  }

  matching(search) {
    const wanted = search.toLowerCase();
    return wanted ? this.lines.filter((line) => line.text.toLowerCase().includes(wanted)) :
                    this.lines;
  }

  #push(piece, text) {
    // A bar draws over its own line: people see its last state.
    const shown = text.replace(/\r$/, "").split("\r").at(-1).slice(0, MOST_LINE_LENGTH);
    const plain = shown.replace(/\u001b\[[0-9;?]*[A-Za-z]/g, "");
    this.#count += 1;
    this.lines.push(
        {number: this.#count, rank: piece.rank, stream: streamName(piece.stream), text: plain});
  }

  #trim() {
    if (this.lines.length <= MOST_LINES) return;
    const gone = this.lines.length - Math.floor(MOST_LINES * 0.9);
    this.lines = this.lines.slice(gone);
    this.dropped += gone;
  }
}

// The API writes each byte that is not UTF-8 as \xNN.
function sizeOf(text) {
  return bytes.encode(text.replace(/\\x[0-9a-f]{2}/g, "?")).length;
}

function withoutBytes(text, count) {
  let left = count;
  let at = 0;
  while (left > 0 && at < text.length) {
    const escaped = /^\\x[0-9a-f]{2}/.test(text.slice(at, at + 4));
    const character = escaped ? text.slice(at, at + 4) : String.fromCodePoint(text.codePointAt(at));
    left -= sizeOf(character);
    at += character.length;
  }
  return text.slice(at);
}

function streamName(stream) {
  return /ERR/i.test(String(stream)) || stream === 2 ? "stderr" : "stdout";
}
