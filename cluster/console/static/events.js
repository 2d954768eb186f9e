// Reads server-sent events from a fetch, because EventSource can send no key.

/** Calls `take(name, data)` for each event of a response, until it ends or `signal` aborts. */
export async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const name = field(lines, "event: ") ?? "message";
      const data = field(lines, "data: ");
      if (data !== undefined) take(name, data);
    }
  }
}

function field(lines, name) {
  return lines.find((line) => line.startsWith(name))?.slice(name.length);
}

/** The message and the code of an answer that is an error. */
export async function failureOf(response) {
  try {
    const { message, code } = (await response.json()).error;
    return { message, code };
  } catch {
    return { message: `the router answered ${response.status}`, code: null };
  }
}

/** The message of an answer that is an error. */
export const problemOf = async (response) => (await failureOf(response)).message;
