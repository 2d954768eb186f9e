// Tenants: their requests, their share of the service, and their use of each cap.

import { byId, el, fillBar, keyed, say } from "./dom.js";
import { count, percent } from "./format.js";
import { state } from "./feed.js";
import { shownRise } from "./rise.js";

// The name of all tenants that the router counts together.
const OTHERS = "other";
const CAPS = ["concurrent", "waiting_tokens", "kv_tokens"];
const NOTHING = { tokens: 0, requests: 0, refused: 0 };

/** Draws the table: every configured or present tenant, and all that asked lately; the busiest first. */
export function drawTenants() {
  const names = [...new Set([...Object.keys(state.tenants), ...Object.keys(state.served)])];
  const whole = Object.values(state.served).reduce((sum, one) => sum + one.tokens, 0);
  const rows = names.map((name) => [name, { ...state.tenants[name], ...(state.served[name] ?? NOTHING) }]);
  rows.sort(([a, one], [b, other]) => (a === OTHERS) - (b === OTHERS) || other.tokens - one.tokens || other.requests - one.requests || a.localeCompare(b));
  keyed(byId("tenant-rows"), rows, ([name]) => name, create, (child, [name, one]) => {
    say(child.firstElementChild.lastElementChild, shownRise()?.cause.tenant === name ? " sent more than usual" : "");
    update(child, one, whole);
  });
}

function create([name]) {
  const cell = () => el("td", {}, el("span"), el("span", { class: "bar", role: "img" }));
  const number = () => el("td", { class: "number" });
  return el("tr", {}, el("th", { scope: "row" }, name === OTHERS ? "all others" : name, el("span", { class: "cause" })), number(), number(), number(), number(), cell(), ...CAPS.map(cell));
}

function update(child, one, whole) {
  const [, weight, requests, refused, waiting, share, ...caps] = child.children;
  say(weight, one.weight === undefined ? "–" : String(one.weight));
  say(requests, count(one.requests));
  say(refused, count(one.refused));
  refused.classList.toggle("problem", one.refused > 0);
  say(waiting, count(one.waiting_requests));
  // A young cluster was not observed for the whole window.
  const observed_s = Math.max(1, Math.min(state.chart.window_s, state.now - state.since));
  const rate = `${count(one.tokens / observed_s)} tokens/s`;
  fill(share, whole ? `${percent(one.tokens / whole)}, ${count(one.tokens)} tokens, ${rate}` : "–", one.tokens, whole, "line-0");
  CAPS.forEach((name, index) => {
    if (one.caps === undefined) return fill(caps[index], "–", 0, 0, "line-0");
    const { used, here, cap } = one.caps[name];
    const most = cap === null ? "no cap" : here === cap ? `of ${count(cap)}` : `of ${count(here)} here, ${count(cap)} in all`;
    return fill(caps[index], `${count(used)}${cap === null ? "," : ""} ${most}`, used, here, here && used >= 0.9 * here ? "full" : "line-0");
  });
}

function fill(cell, text, value, whole, kind) {
  const [words, line] = cell.children;
  say(words, text);
  line.setAttribute("aria-label", text);
  fillBar(line, whole ? [[kind, value, text]] : [], whole);
}
