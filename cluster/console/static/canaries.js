// Canaries: their share, and the figures of both arms beside each other.

import { byId, el } from "./dom.js";
import { count, lasting, percent, seconds } from "./format.js";
import { state } from "./feed.js";

const HEADS = ["Arm", "Served as", "Share", "Requests", "Failed", "TTFT p95"];
let drawn = "";

/** Draws the canaries if they changed. */
export function drawCanaries() {
  const now = JSON.stringify([state.canaries, state.settings.version]);
  if (now === drawn) return;
  drawn = now;
  byId("canaries").replaceChildren(...(state.canaries.length ? state.canaries.map(canary) : [el("p", { class: "quiet" }, "No endpoint has a canary.")]));
}

function canary(one) {
  const share = one.reason ? 0 : one.share;
  const rows = [arm("stable", one.endpoint, 1 - share, one.stable), arm("canary", one.served_as, share, one.canary)];
  const head = el("thead", {}, el("tr", {}, ...HEADS.map((title, index) => el("th", { scope: "col", class: index > 1 ? "number" : "" }, title))));
  return el(
    "section",
    { "aria-label": `Canary of ${one.endpoint}` },
    el("p", { class: one.reason ? "problem" : "" }, fate(one)),
    el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": `Arms of ${one.endpoint}` }, el("table", {}, head, el("tbody", {}, ...rows))),
    el("p", { class: "quiet" }, guard(one)),
  );
}

function fate(one) {
  if (one.reason) return `${one.served_as} was rolled back: ${one.reason}. ${one.endpoint} gets all requests.`;
  return `${percent(one.share)} of the requests to ${one.endpoint} are served as ${one.served_as}.`;
}

function arm(title, endpoint, share, stats) {
  const numbers = [percent(share), count(stats.requests), `${count(stats.failed)} (${percent(stats.requests ? stats.failed / stats.requests : 0)})`, seconds(stats.ttft_p95_s)];
  return el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, endpoint), ...numbers.map((text) => el("td", { class: "number" }, text)));
}

function guard(one) {
  const found = state.settings.endpoints[one.endpoint]?.guard;
  if (!found) return "";
  return `This router's requests of the last ${lasting(found.window_s)}. From ${count(found.min_requests)} of each arm on, the canary is rolled back where its TTFT p95 is above ${found.ttft_p95_ratio} times the stable one, or ${percent(found.error_rate)} more of its requests fail.`;
}
