// Server-sent events from text that comes in pieces. Pure.

export class EventParser {
  #rest = "";

  // [{event, data}] that are whole now. Comments, such as heartbeats, are nothing.
  feed(text) {
    const blocks = (this.#rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(parseBlock).filter((one) => one.data !== "" || one.event !== "message");
  }
}

function parseBlock(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:"))
      event = line.slice(6).trim();
    else if (line.startsWith("data:"))
      data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  return {event, data: data.join("\n")};
}
