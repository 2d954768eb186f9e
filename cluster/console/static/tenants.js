// Tenants: their share of the service, and their use of each cap.

import { byId, el, fillBar, keyed, say } from "./dom.js";
import { count, percent } from "./format.js";
import { state } from "./feed.js";
import { shownRise } from "./rise.js";

const CAPS = ["concurrent", "waiting_tokens", "kv_tokens"];

/** Draws the table: every configured or present tenant, and all that were served lately. */
export function drawTenants() {
  const names = [...new Set([...Object.keys(state.tenants), ...Object.keys(state.served)])].sort();
  const whole = Object.values(state.served).reduce((sum, tokens) => sum + tokens, 0);
  const rows = names.map((name) => [name, { ...state.tenants[name], work: state.served[name] ?? 0 }]);
  keyed(byId("tenant-rows"), rows, ([name]) => name, create, (child, [name, one]) => {
    say(child.firstElementChild.lastElementChild, shownRise()?.cause.tenant === name ? " sent more than usual" : "");
    update(child, one, whole);
  });
}

function create([name]) {
  const cell = () => el("td", {}, el("span"), el("span", { class: "bar", role: "img" }));
  return el("tr", {}, el("th", { scope: "row" }, name, el("span", { class: "cause" })), el("td", { class: "number" }), cell(), ...CAPS.map(cell));
}

function update(child, one, whole) {
  const [, weight, share, ...caps] = child.children;
  say(weight, one.weight === undefined ? "–" : String(one.weight));
  fill(share, whole ? `${percent(one.work / whole)}, ${count(one.work)} tokens` : "–", one.work, whole, "line-0");
  CAPS.forEach((name, index) => {
    if (one.caps === undefined) return fill(caps[index], "–", 0, 0, "line-0");
    const { used, here, cap } = one.caps[name];
    const most = cap === null ? "no cap" : here === cap ? `of ${count(cap)}` : `of ${count(here)} here, ${count(cap)} in all`;
    const wait = name === "waiting_tokens" && one.waiting_requests ? ` (${count(one.waiting_requests)} requests)` : "";
    return fill(caps[index], `${count(used)} ${most}${wait}`, used, here, here && used >= 0.9 * here ? "full" : "line-0");
  });
}

function fill(cell, text, value, whole, kind) {
  const [words, line] = cell.children;
  say(words, text);
  line.setAttribute("aria-label", text);
  fillBar(line, whole ? [[kind, value, text]] : [], whole);
}
