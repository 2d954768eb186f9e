// Why TTFT rose: one sentence for the headline, and the shares by stage, pool, replica and tenant.

import { byId, el, say } from "./dom.js";
import { clock, lasting, percent, reasonName, seconds, stageName } from "./format.js";
import { state } from "./feed.js";

const LEAST_SHARE = 0.05;
let chosen = null;
let drawn = "";

/** The rise that is shown: the chosen endpoint's, or the largest one. */
export function shownRise() {
  return state.rises.find((one) => one.endpoint === chosen) ?? state.rises[0];
}

/** Draws the panel if it changed. */
export function drawRise() {
  const rise = shownRise();
  say(byId("headline"), headline(rise));
  byId("headline").classList.toggle("slow", rise !== undefined || state.missing.length > 0);
  const now = JSON.stringify([state.rises, chosen]);
  if (now === drawn) return;
  drawn = now;
  byId("rise").replaceChildren(...(rise ? panel(rise) : [el("p", { class: "quiet" }, `TTFT is as usual: no span of the last ${lasting(state.chart.window_s)} was slower than the rest by 30 % or more.`)]));
}

function headline(rise) {
  if (state.missing.length) return `No replica is healthy for: ${state.missing.join(", ")}.`;
  const refused = refusals();
  if (rise) {
    const going = state.now - rise.end < 30;
    const when = going ? `since ${clock(rise.begin)}` : `from ${clock(rise.begin)} to ${clock(rise.end)}`;
    return `TTFT of ${rise.endpoint} is ${seconds(rise.slow_s)} in the mean ${when}; it was ${seconds(rise.usual_s)}. ${cause(rise)} ${refused}`.replace(" is ", going ? " is " : " was ").trim();
  }
  if (refused) return `TTFT is as usual. ${refused}`;
  const firsts = Object.values(state.series).flatMap((step) => Object.values(step)).reduce((sum, point) => sum + point.first_tokens, 0);
  return firsts ? `TTFT is as usual: ${firsts} first tokens in ${lasting(state.chart.window_s)}.` : `No requests in the last ${lasting(state.chart.window_s)}.`;
}

function refusals() {
  const sums = {};
  for (const step of Object.values(state.series))
    for (const point of Object.values(step))
      for (const [reason, number] of Object.entries(point.refused)) sums[reason] = (sums[reason] ?? 0) + number;
  const [most] = Object.entries(sums).sort((a, b) => b[1] - a[1]);
  return most ? `${Object.values(sums).reduce((a, b) => a + b)} requests were refused, most because ${reasonName(most[0])}.` : "";
}

/** The cause in words: the stage, and where the added time is not spread evenly. */
function cause(rise) {
  const stage = rise.stages[0];
  const words = [`${percent(stage.share)} of the added time is ${stageName(stage.name)}`];
  const reason = rise.reasons[0];
  if (reason && reason.share > 0.3) words.push(`because ${reasonName(reason.name)}`);
  const replica = rise.replicas[0];
  if (replica && rise.replicas.length > 1 && replica.share > 0.6 && replica.share > 1.3 * replica.requests) words.push(`on ${replica.name}`);
  const tenant = [...rise.tenants].sort((a, b) => load(b) - load(a))[0];
  let text = `${words.join(", ")}.`;
  if (tenant && load(tenant) > 2) text += ` ${tenant.name} sent ${tenant.load === null ? "prompts that it did not send before" : `${tenant.load.toFixed(1)} times its usual prompt tokens`}.`;
  return text;
}

/** How much more a tenant sent, as far as it has a part in the slow requests. */
function load(tenant) {
  if (tenant.requests < 0.2) return 0;
  return tenant.load === null ? 1000 : tenant.load;
}

function panel(rise) {
  const parts = [];
  if (state.rises.length > 1) {
    const picks = state.rises.map((one) => el("button", { type: "button", class: "pick", "aria-pressed": String(one === rise), on: { click: () => { chosen = one.endpoint; drawRise(); } } }, one.endpoint));
    parts.push(el("div", { class: "row", role: "group", "aria-label": "Endpoint" }, ...picks));
  }
  parts.push(el("p", {}, el("strong", {}, rise.endpoint), `: ${clock(rise.begin)} to ${clock(rise.end)}, ${rise.requests} requests with ${seconds(rise.slow_s)} instead of ${seconds(rise.usual_s)}. ${cause(rise)}`));
  parts.push(group("By stage", rise.stages, stageName), group("By pool", rise.pools, (name) => name));
  if (rise.reasons.length) parts.push(group("Waits in the router", rise.reasons, reasonName));
  parts.push(group("By replica", rise.replicas, (name) => name || "none"), group("By tenant", rise.tenants, (name) => name));
  return parts;
}

function group(title, shares, name) {
  const shown = shares.filter((one) => one.share >= LEAST_SHARE).slice(0, 4);
  const rows = shown.map((one) => {
    const line = el("span", { class: "span" });
    line.style.width = `${Math.min(100, 100 * one.share)}%`;
    const usual = one.usual_s === null ? "not there before" : `before ${seconds(one.usual_s)}`;
    return el("tr", {}, el("th", { scope: "row" }, name(one.name)), el("td", { class: "track" }, line), el("td", { class: "number" }, percent(one.share)), el("td", { class: "number quiet" }, `${seconds(one.slow_s)}, ${usual}`));
  });
  return el("table", { class: "shares" }, el("caption", {}, title), el("tbody", {}, ...rows));
}
