// The playground: a chat over the public API, with options, structure, and its own waterfall.

import { byId, el, keyed, say, show } from "./dom.js";
import { problemOf, readEvents } from "./events.js";
import { count, seconds } from "./format.js";
import { state } from "./feed.js";
import { waterfall } from "./waterfall.js";

const GRAMMARS = {
  json_schema: ["Schema", '{"type": "object", "properties": {"fact": {"type": "string", "maxLength": 80}}, "required": ["fact"]}'],
  regex: ["Regular expression", "(yes|no), because [a-z ]{1,40}"],
  choices: ["Choices", "prefill\ndecode"],
};
// A chat that is scrolled up by more stays where it is.
const NEAR_END = 40;
let messages = [];
let running = null;

/** Sets the page up. */
export function startPlayground() {
  byId("play").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("play-stop").addEventListener("click", () => running?.abort());
  byId("play-clear").addEventListener("click", clear);
  byId("play-form").addEventListener("change", chooseForm);
}

/** Offers the endpoints, and asks for a tenant's key where keys are configured. */
export function drawPlayground() {
  const names = Object.entries(state.settings.endpoints).filter(([, one]) => one.lane !== "scoring").map(([name]) => name);
  keyed(byId("play-endpoint"), names, (name) => name, (name) => el("option", { value: name }, name));
  show(byId("play-key-label"), Boolean(state.settings.keys));
}

function chooseForm() {
  const [title, example] = GRAMMARS[byId("play-form").value] ?? [];
  show(byId("play-grammar-label"), Boolean(title));
  if (!title) return;
  byId("play-grammar-label").firstChild.data = `${title} `;
  byId("play-grammar").value = example;
}

function clear() {
  running?.abort();
  messages = [];
  byId("play-log").replaceChildren();
  byId("play-waterfall").replaceChildren();
  say(byId("play-state"), "");
}

function body() {
  const system = byId("play-system").value.trim();
  const form = byId("play-form").value;
  const text = byId("play-grammar").value;
  return {
    model: state.settings.model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    endpoint: byId("play-endpoint").value,
    max_tokens: number("play-tokens"),
    temperature: number("play-temperature"),
    top_p: number("play-top-p"),
    seed: number("play-seed"),
    ...(form === "json_schema" ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } } } : {}),
    ...(form === "regex" ? { guided_regex: text } : {}),
    ...(form === "choices" ? { guided_choice: text.split("\n").filter(Boolean) } : {}),
    stream: true,
    stream_options: { include_usage: true },
    timing: true,
  };
}

/** The number of a field; nothing where the field is empty, so that the router's default holds. */
const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));

async function send() {
  if (running) return;
  const message = byId("play-message").value;
  messages.push({ role: "user", content: message });
  const log = byId("play-log");
  const words = new Text();
  const answer = el("p", { class: "answer" }, words);
  log.append(el("p", { class: "asked" }, message), answer);
  log.scrollTop = log.scrollHeight;
  // Screen readers read the whole answer once it is there, and no pieces of it.
  log.setAttribute("aria-busy", "true");
  byId("play-waterfall").replaceChildren();
  byId("play-stop").disabled = false;
  running = new AbortController();
  const began = performance.now();
  let text = "";
  let ended = false;
  try {
    say(byId("play-state"), "Waiting for the first token.");
    const key = byId("play-key").value.trim();
    const response = await fetch("v1/chat/completions", { method: "POST", headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) }, body: JSON.stringify(body()), signal: running.signal });
    if (!response.ok) throw new Error(await problemOf(response));
    await readEvents(response, (_, data) => {
      if (data === "[DONE]") {
        ended = true;
        return;
      }
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices?.[0]?.delta;
      const more = `${delta?.reasoning_content ?? ""}${delta?.content ?? ""}`;
      if (more && !text) say(byId("play-state"), `First token after ${seconds((performance.now() - began) / 1000)}.`);
      text += more;
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
      words.appendData(more);
      if (follows) log.scrollTop = log.scrollHeight;
      if (event.timing) finish(event);
    });
    if (!ended) throw new Error("The stream broke off.");
    messages.push({ role: "assistant", content: text });
  } catch (error) {
    messages.pop();
    if (answer.isConnected) say(byId("play-state"), problemIn(error));
  } finally {
    running = null;
    log.setAttribute("aria-busy", "false");
    byId("play-stop").disabled = true;
  }
}

function problemIn(error) {
  if (error.name === "AbortError") return "Stopped.";
  return error instanceof TypeError ? "The router does not answer." : error.message;
}

function finish(event) {
  const [choice] = event.timing.choices;
  const tokens = event.usage ? `${count(event.usage.prompt_tokens)} + ${count(event.usage.completion_tokens)} tokens, ` : "";
  say(byId("play-state"), `${tokens}TTFT ${seconds(choice.ttft_s)}, ${seconds(event.timing.total_s)} in all; ${choice.prefill_replica} → ${choice.decode_replica}.`);
  byId("play-waterfall").replaceChildren(waterfall(choice.stages, "Stages of this answer"));
}
