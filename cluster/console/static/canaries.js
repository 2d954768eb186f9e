// Canaries: their share, and the figures of both arms beside each other.

import { byId, el, keyed, say } from "./dom.js";
import { count, lasting, percent, seconds } from "./format.js";
import { state } from "./feed.js";

const HEADS = ["Arm", "Served as", "Share", "Requests", "Failed", "TTFT p95"];
const NONE = { endpoint: "", served_as: "" };

/** Draws the canaries. */
export function drawCanaries() {
  const shown = state.canaries.length ? state.canaries : [NONE];
  keyed(byId("canaries"), shown, (one) => `${one.endpoint} ${one.served_as}`, create, update);
}

function create(one) {
  if (one === NONE) return el("p", { class: "quiet" }, "No endpoint has a canary.");
  const head = el("thead", {}, el("tr", {}, ...HEADS.map((title, index) => el("th", { scope: "col", class: index > 1 ? "number" : "" }, title))));
  return el(
    "section",
    { "aria-label": `Canary of ${one.endpoint}` },
    el("p"),
    el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": `Arms of ${one.endpoint}` }, el("table", {}, head, el("tbody", {}, arm("stable", one.endpoint), arm("canary", one.served_as)))),
    el("p", { class: "quiet" }),
  );
}

function arm(title, endpoint) {
  return el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, endpoint), ...HEADS.slice(2).map(() => el("td", { class: "number" })));
}

function update(child, one) {
  if (one === NONE) return;
  const [outcome, , judged] = child.children;
  say(outcome, fate(one));
  outcome.className = one.reason ? "problem" : "";
  say(judged, guard(one));
  const [stable, canary] = child.querySelectorAll("tbody tr");
  const share = one.reason ? 0 : one.share;
  figures(stable, 1 - share, one.stable);
  figures(canary, share, one.canary);
}

function figures(row, share, stats) {
  const texts = [percent(share), count(stats.requests), `${count(stats.failed)} (${percent(stats.requests ? stats.failed / stats.requests : 0)})`, seconds(stats.ttft_p95_s)];
  texts.forEach((text, index) => say(row.children[index + 2], text));
}

function fate(one) {
  if (one.reason) return `${one.served_as} was rolled back: ${one.reason}. ${one.endpoint} gets all requests.`;
  return `${percent(one.share)} of the requests to ${one.endpoint} are served as ${one.served_as}.`;
}

function guard(one) {
  const found = state.settings.endpoints[one.endpoint]?.guard;
  if (!found) return "";
  return `This router's requests of the last ${lasting(found.window_s)}. From ${count(found.min_requests)} of each arm on, the canary is rolled back where its TTFT p95 is above ${found.ttft_p95_ratio} times the stable one, or ${percent(found.error_rate)} more of its requests fail.`;
}
