// The feed of the router, merged into one state. It comes back by itself, and asks for a key.

import { askForKey, headers, nextKey } from "./access.js";
import { problemOf, readEvents } from "./events.js";

const MOST_ROWS = 400;
const SILENT_MS = 10000;

/** The state as the router tells it. */
export const state = { series: {}, rows: [], skipped: 0, replicas: {}, running: { rows: [], count: 0, waiting: 0, stalled: 0 }, links: [], rises: [], tenants: {}, served: {}, canaries: [], missing: [], routers: {}, settings: { endpoints: {} }, cluster: {}, chart: { window_s: 0, step_s: 1 }, words: { stages: {}, reasons: {}, no_rise: "" }, since: 0, now: 0 };

/** Follows the feed for ever; `changed(names)` is called after each event, `told(text, live)` on changes of the connection. */
export async function follow(changed, told) {
  let pause = 500;
  for (;;) {
    const problem = await once((names) => {
      pause = 500;
      told("live", true);
      changed(names);
    });
    told(problem.text, false);
    if (problem.key) {
      if (!(await askForKey(problem.text))) {
        told("stopped: this console needs an operator's key", false);
        await nextKey();
      }
      continue;
    }
    await new Promise((resolve) => setTimeout(resolve, problem.wait_ms ?? pause));
    pause = Math.min(10000, 2 * pause);
  }
}

async function once(changed) {
  const control = new AbortController();
  let silent = setTimeout(() => control.abort(), SILENT_MS);
  let ended = "the router does not answer; trying again";
  try {
    const response = await fetch("console/feed", { headers: headers(), signal: control.signal, cache: "no-store" });
    if (!response.ok) {
      const wait_s = Number(response.headers.get("retry-after"));
      const text = await problemOf(response);
      if (wait_s) return { text: `${text}; trying again in ${wait_s} s`, wait_ms: 1000 * wait_s };
      return { text, key: response.status === 401 || response.status === 403 };
    }
    await readEvents(response, (name, data) => {
      clearTimeout(silent);
      silent = setTimeout(() => control.abort(), SILENT_MS);
      const document = JSON.parse(data);
      if (name === "ended") ended = `${document.reason}; trying again`;
      else changed(merge(name === "whole", document));
    });
  } catch {
    // The reason below is what there is to say.
  } finally {
    clearTimeout(silent);
    control.abort();
  }
  return { text: ended, key: false };
}

/** Merges an event; returns the names of the sections that changed. */
function merge(whole, document) {
  if (whole) state.skipped = 0;
  for (const [name, value] of Object.entries(document)) {
    if (!whole && name === "replicas") mergeReplicas(value);
    else if (!whole && name === "series") Object.assign(state.series, value);
    else if (!whole && name === "rows") state.rows = [...state.rows, ...value].slice(-MOST_ROWS);
    else if (!whole && name === "skipped") state.skipped += value;
    else state[name] = name === "tenants" || name === "served" ? byName(value) : value;
  }
  const oldest = state.now - state.chart.window_s - 20;
  for (const at of Object.keys(state.series)) if (Number(at) < oldest) delete state.series[at];
  return new Set(Object.keys(document));
}

/** A table by names that anybody chose; it has no `constructor` of its own. */
const byName = (table) => Object.assign(Object.create(null), table);

function mergeReplicas(changes) {
  for (const [id, replica] of Object.entries(changes)) {
    if (replica === null) delete state.replicas[id];
    else state.replicas[id] = replica;
  }
}
