// Requests that run and requests that ended: filtered, stopped, opened as a waterfall.

import { act, call } from "./access.js";
import { byId, el, fillBar, keyed, note, say, show } from "./dom.js";
import { clock, count, reasonName, seconds, short, stageName } from "./format.js";
import { state } from "./feed.js";
import { routerOf, severalRouters } from "./routers.js";
import { explained, stageBar } from "./waterfall.js";

const MOST_SHOWN = 60;
let found = null;
let held = null;
let oldest = 0;
let opened = 0;

/** Sets the page up. */
export function startRequests() {
  byId("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    slowest();
  });
  byId("filter").addEventListener("input", () => drawRequests());
  byId("filter-live").addEventListener("click", () => {
    found = null;
    drawRequests();
  });
  byId("filter-paused").addEventListener("change", (event) => {
    held = event.target.checked ? { rows: [...state.rows], running: [...state.running.rows] } : null;
    drawRequests();
  });
  byId("open-id").addEventListener("click", () => openRequest({ request_id: byId("filter-text").value.trim() }));
  byId("request-close").addEventListener("click", () => byId("request-dialog").close());
}

/** Draws both tables. */
export function drawRequests() {
  const endpoints = Object.keys(state.settings.endpoints);
  keyed(byId("filter-endpoint"), ["", ...endpoints], (name) => name, (name) => el("option", { value: name }, name || "all"));
  const legend = (name) => el("span", { class: "entry" }, el("i", { class: `swatch stage-${name}` }), stageName(name));
  keyed(byId("stage-legend"), Object.keys(state.words.stages), (name) => name, legend);
  const running = runningRows().filter(isChosen);
  oldest = Math.max(0, ...running.map((row) => state.now - row.received_at));
  say(byId("running-count"), `${count(state.running.count)}, of which ${count(state.running.waiting)} without a first token, ${count(state.running.stalled)} stalled${state.running.count > state.running.rows.length ? `; the ${state.running.rows.length} of longest waits, then the newest, are shown` : ""}`);
  keyed(byId("running-rows"), running, keyOf, runningRow, updateRunning);
  const rows = found ?? [...(held?.rows ?? state.rows)].reverse();
  say(byId("ended-title"), found ? `Ended, the slowest in ${severalRouters() ? "the routers' memories" : "this router's memory"}` : "Ended, the newest first");
  show(byId("filter-live"), found !== null);
  const chosen = rows.filter(isChosen);
  const missed = state.skipped ? `; ${count(state.skipped)} more went by too fast for this page` : "";
  say(byId("ended-count"), chosen.length > MOST_SHOWN ? `${MOST_SHOWN} of ${count(chosen.length)}${missed}` : missed.slice(2));
  show(byId("ended-none"), !chosen.length && Boolean(byId("filter-text").value.trim()));
  keyed(byId("ended-rows"), chosen.slice(0, MOST_SHOWN), (row) => `${keyOf(row)} ${row.received_at}`, endedRow);
}

const keyOf = (row) => `${row.router ?? ""} ${row.tenant} ${row.request_id}`;

/** The rows of requests that run. Rows that are held keep their places, so that no button moves. */
function runningRows() {
  if (!held) return state.running.rows;
  const now = new Map(state.running.rows.map((row) => [keyOf(row), row]));
  return held.running.map((row) => now.get(keyOf(row)) ?? { ...row, gone: true });
}

function isChosen(row) {
  const text = byId("filter-text").value.trim().toLowerCase();
  const endpoint = byId("filter-endpoint").value;
  if (endpoint && row.endpoint !== endpoint) return false;
  if (byId("filter-failed").checked && (row.outcome ?? "ok") === "ok") return false;
  const words = [row.request_id, row.tenant, row.endpoint, row.outcome, row.refused_for, row.prefill_replica, row.decode_replica, routerOf(row)];
  return !text || words.some((one) => one?.toLowerCase().includes(text));
}

function runningRow(row) {
  const stop = () => act("console/stop", { id: row.request_id, tenant: row.tenant }, `Stopped: ${row.request_id}`);
  const button = el("button", { type: "button", "aria-label": `stop ${row.request_id}`, on: { click: stop } }, "Stop");
  return el("tr", {}, el("th", { scope: "row", title: row.request_id }, short(row.request_id)), el("td", { title: row.endpoint }, row.endpoint), el("td", { title: row.tenant }, row.tenant), ...["Age", "TTFT", "Tokens", "Longest stall"].map(() => el("td", { class: "number" })), el("td"), el("td", { class: "stages" }, el("span", { class: "bar", role: "img" })), el("td", {}, button));
}

function updateRunning(child, row) {
  const cells = child.children;
  if (row.gone) return say(cells[7], "has ended, or is not sent any more");
  say(cells[3], seconds(Math.max(0, state.now - row.received_at)));
  say(cells[4], row.ttft_s === null ? "waits" : seconds(row.ttft_s));
  say(cells[5], count(row.tokens));
  const where = row.prefill_replica === row.decode_replica ? short(row.decode_replica) : `${short(row.prefill_replica)} → ${short(row.decode_replica)}`;
  const age = Math.max(0, state.now - row.received_at);
  const first = row.ttft_s ?? age;
  const label = row.ttft_s === null ? `${seconds(age)} without a first token` : `first token after ${seconds(first)}, then ${seconds(age - first)} of tokens`;
  cells[8].firstChild.setAttribute("aria-label", label);
  fillBar(cells[8].firstChild, [["stage-prefill", first, label], ["stage-decode", age - first, label]], Math.max(1, oldest));
  say(cells[6], row.stall_s ? `${seconds(row.stall_s)}, goes on` : seconds(row.longest_stall_s || null));
  cells[6].classList.toggle("problem", row.stall_s > 0);
  const router = routerOf(row) ? short(routerOf(row)) : "router";
  const reached = routerOf(row) ? `${router}: ${where}` : where;
  return say(cells[7], row.prefill_replica ? reached : row.waited_for ? `${router}: ${reasonName(row.waited_for)}` : router);
}

function endedRow(row) {
  const open = el("button", { type: "button", class: "open", title: row.request_id, on: { click: () => openRequest(row) } }, short(row.request_id));
  const outcome = row.refused_for ? `refused: ${reasonName(row.refused_for)}` : row.outcome;
  const where = [row.prefill_replica, row.decode_replica].filter(Boolean).join(" → ");
  return el("tr", { class: row.outcome === "ok" ? "" : "failed" }, el("th", { scope: "row" }, open, el("span", { class: "quiet" }, ` ${clock(row.received_at + (row.total_s ?? 0))} ${short(routerOf(row))}`.trimEnd())), el("td", {}, row.endpoint), el("td", {}, row.tenant ?? "–"), el("td", { title: row.reason ?? "" }, outcome), el("td", { class: "number" }, seconds(row.ttft_s)), el("td", { class: "number" }, seconds(row.itl_p95_s)), el("td", { class: "number" }, `${count(row.prompt_tokens)} + ${count(row.completion_tokens)}`), el("td", { class: "stages", title: where }, row.stages?.length ? stageBar(row.stages) : "–"));
}

/** Opens a request that ended as a waterfall with its words. */
export async function openRequest(row) {
  const dialog = byId("request-dialog");
  const turn = (opened += 1);
  const put = (content) => turn === opened && byId("request-body").replaceChildren(content);
  say(byId("request-title"), `Request ${row.request_id}`);
  put(el("p", { class: "quiet" }, "Asking the router."));
  if (!dialog.open) dialog.showModal();
  try {
    const whole = await call(`console/request?${new URLSearchParams({ id: row.request_id, tenant: row.tenant ?? "" })}`);
    put(explained(whole));
  } catch (error) {
    put(el("p", { class: "problem" }, error.message));
  }
}

async function slowest() {
  const query = { slowest: "true", since_s: String(state.chart.window_s), limit: "100", failed: String(byId("filter-failed").checked) };
  const endpoint = byId("filter-endpoint").value;
  if (endpoint) query.endpoint = endpoint;
  try {
    const answer = await call(`console/requests?${new URLSearchParams(query)}`);
    found = answer.rows;
    for (const [name, reason] of Object.entries(answer.silent)) note(`The requests of ${name} are missing: ${reason}.`);
    drawRequests();
  } catch (error) {
    note(error.message);
  }
}
