// Why TTFT rose: one sentence for the headline, and the shares by stage, pool, replica and tenant.

import { byId, el, say } from "./dom.js";
import { clock, lasting, percent, reasonName, seconds, stageName } from "./format.js";
import { state } from "./feed.js";

const LEAST_SHARE = 0.05;
const SPEAK_MS = 15000;
let chosen = null;
let drawn = "";
let spoken = null;
let spokenAt = 0;

/** The rise that is shown: the chosen endpoint's, or the largest one. */
export function shownRise() {
  return state.rises.find((one) => one.endpoint === chosen) ?? state.rises[0];
}

/** Draws the panel if it changed. */
export function drawRise() {
  const rise = shownRise();
  say(byId("headline"), headline(rise));
  speak(rise);
  byId("headline").classList.toggle("slow", rise !== undefined || state.missing.length > 0);
  const now = JSON.stringify([state.rises, chosen]);
  if (now === drawn) return;
  drawn = now;
  const place = byId("rise");
  const picks = place.contains(document.activeElement);
  place.replaceChildren(...(rise ? panel(rise) : [el("p", { class: "quiet" }, state.words.no_rise)]));
  if (picks) (place.querySelector("[aria-pressed=true]") ?? byId("main")).focus({ preventScroll: true });
}

/** Tells screen readers what is new in kind, and seldom: the headline's numbers move all the time. */
function speak(rise) {
  const kind = JSON.stringify([state.missing, rise?.endpoint, rise?.cause, mostRefused()?.[0]]);
  if (kind === spoken || Date.now() < spokenAt + SPEAK_MS) return;
  spoken = kind;
  spokenAt = Date.now();
  say(byId("told"), byId("headline").textContent);
}

function headline(rise) {
  if (state.missing.length) return `No replica is healthy for: ${state.missing.join(", ")}.`;
  const refused = refusals();
  if (rise) return `${rise.words} ${refused}`.trim();
  if (refused) return `TTFT did not rise. ${refused}`;
  const firsts = Object.values(state.series).flatMap((step) => Object.values(step)).reduce((sum, point) => sum + point.first_tokens, 0);
  return firsts ? `TTFT did not rise: ${firsts} first tokens in ${lasting(state.chart.window_s)}.` : `No requests in the last ${lasting(state.chart.window_s)}.`;
}

function refusals() {
  const most = mostRefused();
  return most ? `Refused requests: ${most[1]}, most because ${reasonName(most[0])}.` : "";
}

/** The most frequent reason of refusals, and the number of all refusals; nothing without any. */
function mostRefused() {
  const sums = {};
  for (const step of Object.values(state.series))
    for (const point of Object.values(step))
      for (const [reason, number] of Object.entries(point.refused)) sums[reason] = (sums[reason] ?? 0) + number;
  const [most] = Object.entries(sums).sort((a, b) => b[1] - a[1]);
  return most && [most[0], Object.values(sums).reduce((a, b) => a + b)];
}

function panel(rise) {
  const parts = [];
  if (state.rises.length > 1) {
    const picks = state.rises.map((one) => el("button", { type: "button", class: "pick", "aria-pressed": String(one === rise), on: { click: () => { chosen = one.endpoint; drawRise(); } } }, one.endpoint));
    parts.push(el("div", { class: "row", role: "group", "aria-label": "Endpoint" }, ...picks));
  }
  // A router of an older version tells of one slow time.
  const also = (rise.also ?? []).map((one) => `; ${clock(one.begin)} to ${clock(one.end)}`).join("");
  const facts = { endpoint: `${rise.endpoint}: ${seconds(rise.slow_s)} instead of ${seconds(rise.usual_s)}`, when: `${clock(rise.begin)} to ${clock(rise.end)}${also}`, ...rise.facts, "what to do": rise.advice, guide: rise.runbook };
  parts.push(el("dl", { class: "facts" }, ...Object.entries(facts).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  parts.push(group("By stage", rise.stages, stageName), group("By pool", rise.pools, (name) => name));
  parts.push(group("Reasons of the router wait", rise.reasons, reasonName));
  parts.push(group(`By replica of ${rise.cause.pool}`, rise.replicas, (name) => name || "none"));
  parts.push(group("By tenant", rise.tenants, (name) => name, `sent ${rise.endpoint} nothing before`));
  return parts.filter((one) => one !== null);
}

/** A table of shares; nothing where none of them counts. */
function group(title, shares, name, unseen = "no requests before") {
  const shown = shares.filter((one) => one.share >= LEAST_SHARE).slice(0, 4);
  if (!shown.length) return null;
  const rows = shown.map((one) => {
    const line = el("span", { class: "span" });
    line.style.width = `${Math.min(100, 100 * one.share)}%`;
    const usual = one.usual_s === null ? unseen : `before ${seconds(one.usual_s)}`;
    return el("tr", {}, el("th", { scope: "row" }, name(one.name)), el("td", { class: "track" }, line), el("td", { class: "number" }, percent(Math.min(1, one.share))), el("td", { class: "number quiet" }, `${seconds(one.slow_s)}, ${usual}`));
  });
  return el("table", { class: "shares" }, el("caption", {}, title), el("tbody", {}, ...rows));
}
