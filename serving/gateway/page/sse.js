/** Server-sent events of a response body (HTML standard, section 9.2), whose lines end with a line feed. */

/**
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{event: string, data: string}>}
 */
export async function* events(body) {
  let block = { event: "message", data: [] };
  for await (const line of lines(body)) {
    if (line === "") {
      if (block.data.length) yield { event: block.event, data: block.data.join("\n") };
      block = { event: "message", data: [] };
      continue;
    }
    const [, name, value] = /^([^:]*)(?:: ?)?(.*)$/s.exec(line);
    if (name === "data") block.data.push(value);
    else if (name === "event") block.event = value;
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n/);
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
